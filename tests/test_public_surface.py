"""What is public: names, signatures, that importing them costs nothing, and that docs and examples use nothing else.

`PYTHONPATH=tools python tests/test_public_surface.py` prints the snapshot; a change of `public_surface.txt` is one that users
can notice.
"""

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import relayrl
import relayrl.errors
import relayrl.extend
import relayrl.testing
from deep_imports import MODULES, PAGES, PROGRAMS, deep_imports, private_uses, public_names

ROOT = Path(__file__).parent.parent
SNAPSHOT = Path(__file__).parent / "public_surface.txt"


def signature(thing: object) -> str:
    """Parameters without what pydantic and enums make of them in one Python version or another."""
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return f"({', '.join(member.name for member in thing)})"
    if inspect.isclass(thing) and issubclass(thing, BaseException) and not inspect.isfunction(thing.__init__):
        return "(message)"
    shown = []
    for each in inspect.signature(thing).parameters.values():
        annotation = f": {each.annotation}" if isinstance(each.annotation, str) else ""
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        if each.kind is each.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if each.default is each.empty:
            default = ""
        else:
            simple = each.default is None or type(each.default) in (bool, int, float, str)
            default = f" = {each.default!r}" if simple else " = …"
        shown.append(f"{star}{each.name}{annotation}{default}")
    return f"({', '.join(shown)})"


def snapshot() -> str:
    lines = []
    for module in MODULES:
        found = importlib.import_module(module)
        for name in public_names(module):
            thing = getattr(found, name)
            lines.append(f"{module}.{name}{'' if inspect.ismodule(thing) else signature(thing)}")
    return "\n".join(lines) + "\n"


def test_names_and_signatures_are_those_of_the_snapshot():
    assert snapshot().splitlines() == SNAPSHOT.read_text().splitlines()


def test_the_main_module_has_few_names():
    names = public_names("relayrl")
    assert len([name for name in names if not name.endswith("Params")]) == 35
    assert len(names) == 54  # each algorithm has its params, nine of them by names that upstream has


@pytest.mark.parametrize("module", ["relayrl", "relayrl.extend", "relayrl.testing"])
def test_dir_shows_the_surface(module):
    assert dir(importlib.import_module(module)) == sorted(importlib.import_module(module).__all__)


@pytest.mark.parametrize("module", ["relayrl", "relayrl.extend", "relayrl.testing"])
def test_an_unknown_name_is_an_attribute_error(module):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'trian'"):
        _ = importlib.import_module(module).trian


TO_EXTEND = """Actor CustomPolicy shutdown_on_signal LaneHeader TrajectoryBuilder encode decode_trajectory TrajectorySource
FanOutSink SinkSettings register_engine register_reward_signal profile PrometheusExporter OtelExporter"""
FORMER = {
    "relayrl": {name: f"relayrl.extend.{name}" for name in TO_EXTEND.split()},
    "relayrl.testing": {"CountingWorld": "relayrl.testing.CountingEnv"},
}


@pytest.mark.parametrize(("module", "former"), [(module, name) for module, names in FORMER.items() for name in names])
def test_former_names_work_and_warn_of_their_new_place(module, former):
    now = FORMER[module][former]
    place, _, name = now.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"^{module}\.{former} is {now} now") as warned:
        found = getattr(importlib.import_module(module), former)
    assert found is getattr(importlib.import_module(place), name)
    assert {Path(warning.filename) for warning in warned} == {Path(__file__)}
    assert former not in dir(importlib.import_module(module))


@pytest.mark.parametrize("package", [relayrl, relayrl.testing])
def test_no_name_is_hidden_by_a_private_module(package):
    """Importing a submodule sets an attribute of its package, in place of a lazy name."""
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules & set(package.__all__) <= {"errors", "extend", "testing"}


@pytest.mark.parametrize("module", ["relayrl", "relayrl.extend", "relayrl.testing"])
def test_type_checkers_see_the_same_names(module):
    tree = ast.parse(Path(importlib.import_module(module).__file__).read_text())
    imports = next(
        node for node in tree.body if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    seen = {name.asname for node in imports.body for name in node.names}
    assert seen == set(public_names(module))


def test_importing_costs_nothing():
    heavy = {"torch", "numpy", "pyarrow", "gymnasium", "pydantic", "relayrl.api", "relayrl.engines", "relayrl.envs"}
    program = (
        f"import sys, relayrl, relayrl.errors, relayrl.extend, relayrl.testing; print({heavy!r} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_api_page_lists_the_surface():
    text = (ROOT / "docs" / "api.md").read_text()
    chapters = {part.partition("`")[0]: part for part in text.split("## `")}
    for module in ("relayrl", "relayrl.extend", "relayrl.testing"):
        rows = re.findall(r"^\| `(\w+)` \|", chapters[module], re.MULTILINE)
        assert rows == [name for name in public_names(module) if f"relayrl.{name}" not in MODULES]
    assert "/docs/api.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS], ids=lambda path: path.name)
def test_docs_and_examples_use_public_names_only(path):
    assert deep_imports(path) == []


def test_a_private_import_would_be_seen():
    program = "from relayrl.envs.environment_registry import make_vector\nPART = 'from relayrl import Foo'\nrelayrl.api.train()"
    assert private_uses(ast.parse(program)) == [
        "relayrl.envs.environment_registry.make_vector",
        "relayrl.Foo",
        "relayrl.api",
    ]


if __name__ == "__main__":
    print(snapshot(), end="")
