"""What the docs say runs: every Python block of every page, in order, every file of settings, and every example."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from relayrl.engines.local.run_parts import build_parts
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.sweeps.sweep_directory import SweepDirectory
from relayrl.sweeps.sweep_settings import PopulationSettings, SearchSettings, SweepSettings

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"write-a-batched-environment.md"}
"""Run by a test of its own (tests/envs/native): its code is a module that its later blocks import."""
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in page.read_text() and page.name not in ELSEWHERE
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
REPOSITORY = re.compile(r"\]\(https://(?:github|raw\.githubusercontent)\.com/relayrl/relayrl/(?:blob/)?main/([^)#]+)")
"""Links of the README, which PyPI shows as well."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_runs(page, tmp_path):
    (tmp_path / "page.py").write_text("\n".join(BLOCK.findall(page.read_text())))
    done = subprocess.run([sys.executable, "page.py"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SWEEPS = ROOT / "docs" / "sweeps.md"
YAML_BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for i, block in enumerate(YAML_BLOCK.findall(page.read_text()))
    if page != SWEEPS
]
GROUP = re.compile(r"`evaluation\.group: (\w+)`|`(\w+)/episode/return_mean`")


@pytest.mark.parametrize("block", YAML_BLOCKS)
def test_settings_of_a_page_fit_their_environment(block, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(block)
    parts = build_parts(build_run_settings(None if "env:" in block else "CartPole-v1", file, {}, []))
    parts.close()
    if "simple_adversary" in block:  # whose groups other pages name as well
        pages = ((ROOT / "docs" / name).read_text() for name in ("evaluation.md", "metrics.md"))
        named = {name for page in pages for pair in GROUP.findall(page) for name in pair if name}
        assert named
        assert named <= set(parts.env.groups)


def test_sweeps_of_their_page_can_begin_and_every_key_is_there(tmp_path):
    import yaml

    blocks = YAML_BLOCK.findall(SWEEPS.read_text())
    assert len(blocks) == 4
    for block in blocks:
        sweep = SweepSettings.model_validate(yaml.safe_load(block))
        SweepDirectory(tmp_path, sweep).require_valid()
    keys = [*SweepSettings.model_fields, *SearchSettings.model_fields, *PopulationSettings.model_fields]
    table = SWEEPS.read_text().partition("## Keys of the file")[2]
    assert [key for key in keys if f"`{key}`" not in table] == []


PLAIN_BLOCK = re.compile(r"^```(?:bash|sh|console)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(relayrl (?:[^#\n\\]|\\\n|#(?=\S))*)", re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = ((page.name, block) for page in pages for block in PLAIN_BLOCK.findall(page.read_text()))
    return [(name, line) for name, block in blocks for line in COMMAND.findall(block)]


def test_commands_of_pages_have_options_that_exist():
    import typer

    from relayrl.cli.main import app

    assert len(commands()) > 20
    for page, line in commands():
        command, words = typer.main.get_command(app), shlex.split(line.replace("\\\n", " "))[1:]
        while getattr(command, "commands", None) and words:
            by_default = getattr(command, "default_command", None)
            assert words[0] in command.commands or by_default, f"{page}: {line}"
            command = command.commands[words.pop(0) if words[0] in command.commands else by_default]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
        assert given <= known | {"--help", "-h"}, f"{page}: {line}"


def test_no_python_is_left_unrun():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"^```(?:py|python3|pycon|python .*)$", page.read_text(), re.MULTILINE)
        assert not blocks or page == SIDE_BY_SIDE, f"{page.name}: write ```python, so that the block runs"


SIDE_BY_SIDE = ROOT / "docs" / "coming-from" / "stable-baselines3.md"
TASK = re.compile(
    r"^## (.+?)\n.*?^```py\n# Stable-Baselines3\n(.*?)^```\n.*?^```py\n# RelayRL\n(.*?)^```", re.MULTILINE | re.DOTALL
)


def tasks() -> dict[str, tuple[str, str]]:
    return {name: (theirs, ours) for name, theirs, ours in TASK.findall(SIDE_BY_SIDE.read_text())}


def test_ours_is_never_longer_than_stable_baselines():
    assert len(tasks()) == 8
    for name, (theirs, ours) in tasks().items():
        assert len(ours.splitlines()) <= len(theirs.splitlines()), name
        assert len("".join(ours.split())) <= len("".join(theirs.split())), name


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 1], ids=["stable-baselines3", "relayrl"])
def test_the_eight_tasks_run(side, tmp_path):
    script = "\n\n".join(blocks[side] for blocks in tasks().values())
    (tmp_path / "tasks.py").write_text(script)
    command, alone = [sys.executable, "tasks.py"], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=alone)
    assert done.returncode == 0, done.stderr


NEED_A_SERVER = {"standalone_client.py"}
"""Run by a test of its own (tests/servers)."""
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in NEED_A_SERVER]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example, tmp_path):
    command = [sys.executable, str(example), str(tmp_path / "run")]
    with (tmp_path / "output").open(
        "w+"
    ) as output:  # a pipe would be waited for as long as a child of the example lives
        done = subprocess.run(command, stdout=output, stderr=output, cwd=tmp_path, check=False)
        output.seek(0)
        assert done.returncode == 0, output.read()


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for target in REPOSITORY.findall(page.read_text()):
        assert (ROOT / target).exists(), f"{page.name} links to {target}"


def test_links_of_the_readme_work_where_it_is_shown_alone():
    assert LINK.findall((ROOT / "README.md").read_text()) == []


def test_the_notebook_runs(tmp_path):
    notebook = json.loads((ROOT / "examples" / "start.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "notebook.py").write_text("import matplotlib\nmatplotlib.use('agg')\n" + "\n".join(cells))
    done = subprocess.run([sys.executable, "notebook.py"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {"start.html", "reference/commands.html", "reference/all-settings.html", "reference/python.html"} <= pages
    assert "relayrl serve training" in (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert 'id="relayrl.api.train"' in (tmp_path / "site" / "reference" / "python.html").read_text()
