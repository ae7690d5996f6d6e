"""How much a reader must open stays bounded: the figures of `tools/architecture.py`, and that they count what they say."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import architecture
from formulas import implementations

PAGE = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
HELD = [
    "files in the largest package",
    "file names that occur more than once",
    "lines to read for algorithms/ppo.py",
    "isinstance on heads or params outside the builder",
    "deep imports in README, docs and examples",
    "files passed by a PPO step",
    "files passed by a request, from the call to the disk",
    "most implementations of one formula",
    "most implementations of one formula in the GPU's kernels",
    "formulas whose expressions are found nowhere",
    "compiled mathematics outside relayrl.accelerator",
]


@pytest.fixture(scope="module")
def figures():
    command = [sys.executable, "tools/architecture.py", "--json"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    return {figure["name"]: figure for figure in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("name", HELD)
def test_a_figure_keeps_its_bound(figures, name):
    figure = figures[name]
    assert figure["value"] <= figure["limit"], "\n".join(figure["parts"])


def test_every_bound_is_held(figures):
    assert sorted(HELD) == sorted(name for name, figure in figures.items() if figure["limit"] is not None)


def test_traces_see_what_certainly_runs(figures):
    assert {"algorithms/ppo.py", "runtime/collector.py"} <= set(figures["files passed by a PPO step"]["parts"])
    request = figures["files passed by a request, from the call to the disk"]["parts"]
    assert {"runtime/agents/agent.py", "sinks/files/arrow_files.py"} <= set(request)


def test_the_page_names_files_that_exist():
    files = {path.relative_to(architecture.PACKAGE).as_posix() for path in architecture.PACKAGE.rglob("*.py")}
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE)) - {"tests/test_architecture.py"}
    assert len(named) > 40
    assert not [name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)]


def test_the_page_walks_a_request_through_every_file(figures):
    walk = PAGE.partition("## One requested action")[2].partition("\n## ")[0]
    passed = figures["files passed by a request, from the call to the disk"]["parts"]
    assert not [path for path in passed if Path(path).name not in walk]


def test_imports_of_functions_and_of_type_checkers_are_not_read():
    tree = ast.parse(
        "from relayrl.errors import ConfigError\n"
        "from relayrl import extend\n"
        "if TYPE_CHECKING:\n    from relayrl.api import Run\n"
        "try:\n    import relayrl.testing\nexcept ImportError:\n    pass\n"
        "def late():\n    import relayrl.api\n"
    )
    found = [str(path.relative_to(architecture.PACKAGE)) for path in architecture._imported(tree)]
    assert found == ["errors.py", "extend.py", "testing/__init__.py"]


def test_a_formula_counts_once_for_each_function(tmp_path):
    twice = "def gae():\n    a = gamma * lam\n    b = gamma * lam * a\n\ndef other():\n    return gamma * lam\n"
    (tmp_path / "returns.py").write_text(twice)
    (tmp_path / "advantages.c").write_text("static void f(void) {\n    float decay = gamma * lam;\n}\n")
    found = implementations(tmp_path)
    assert found["GAE"] == ["advantages.c:2", "returns.py:3", "returns.py:6"]
    assert found["TD target"] == []
