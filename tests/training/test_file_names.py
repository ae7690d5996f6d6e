"""Names of groups never become paths, and no two of them share a file."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.models.exports.exported import ExportFormat
from relayrl.training.files.file_names import file_name_part

NAMES = [
    "../x",
    "a/b",
    "",
    ".",
    "..",
    "x" * 5000,
    "x" * 4999 + "y",
    "\0",
    "ä",
    "a%2Fb",
    "\ud800",
    "a\\b",
    "a\nb",
    "%",
    " ",
]


def test_usual_names_stay_as_they_are():
    assert [file_name_part(name) for name in ("agent", "adversary_0", "Walker-v1.2~")] == [
        "agent",
        "adversary_0",
        "Walker-v1.2~",
    ]


def test_models_of_odd_groups_lie_in_the_run_directory_each_in_its_own_file(tmp_path):
    directory = RunDirectory(tmp_path)
    paths = [directory.model(name, len(NAMES), ExportFormat.ONNX) for name in NAMES]
    assert len({path.name for path in paths}) == len(NAMES)
    for path in paths:
        assert path.parent == tmp_path
        path.write_bytes(b"")
    assert directory.models() == sorted(paths)


def test_the_default_run_directory_lies_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for env in NAMES:
        path = RunDirectory.make_default(RunSettings.model_validate({"env": env.replace("\ud800", "")})).path
        assert path.parent == Path("runs")
        assert len(path.name) < 200


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_names_give_different_parts(one, other):
    first, second = file_name_part(one), file_name_part(other)
    assert (first == second) == (one == other)
    assert "/" not in first
    assert len(first) <= 120
