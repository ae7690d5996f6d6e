"""The table of packages: what a row says, what is kept, and that packages which are missing are rows as well."""

import pytest

import compatibility
from compatibility import PACKAGES, Package, Row


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(compatibility, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(compatibility, "TABLE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(f"before\n{compatibility.BEGIN}\nold\n{compatibility.END}\nafter\n")
    return tmp_path


def test_rows_are_kept_as_they_are(files):
    rows = {"x:A": Row("x", "x:A", "1.0", steps=dict.fromkeys(compatibility.STEPS, "ok"), python="3.11")}
    compatibility.write_rows(rows.values())
    assert compatibility.read_rows() == rows


def test_the_table_names_every_package_and_numbers_what_failed(files):
    failed = {"check": "optional: state_round_trip", "train": "boom", "evaluate": "not run", "render": "not run"}
    kept = {
        "CartPole-v1": Row("gymnasium", "CartPole-v1", "1.2", steps=dict.fromkeys(compatibility.STEPS, "ok")),
        "Pendulum-v1": Row("gymnasium", "Pendulum-v1", "1.2", steps=failed),
    }
    compatibility.write_table(kept)
    text = (files / "page.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| gymnasium | 1.2 | `CartPole-v1` | yes | yes | yes | yes |" in text
    assert "| gymnasium | 1.2 | `Pendulum-v1` | yes [1] | no [2] | not run | not run |" in text
    assert "1. optional: state_round_trip\n2. boom" in text
    assert text.count("\n| ") == len(PACKAGES) + 1
    assert text.count("| not installed |") == len(PACKAGES) - 2


def test_a_package_that_is_missing_is_a_row():
    row = compatibility.try_package(Package("no-such-package-at-all", "x:Y"), install=False)
    assert (row.state, row.steps) == ("not installed", {})


def test_lines_of_failures_have_no_paths_and_no_addresses():
    line = "warning\nrelayrl: cannot read /home/me/thing.py: <function f at 0x7f8c18f4e700>\n"
    assert compatibility._last_line(line) == "cannot read … <function f>"


def test_environments_are_listed_once():
    assert len({package.env for package in PACKAGES}) == len(PACKAGES)
