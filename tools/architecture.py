"""How much a reader must open, in figures: `python tools/architecture.py` prints them, `tests/test_architecture.py` holds them.

Files are counted without `__init__.py`, lines with everything in them. `--verbose` prints what each figure consists of,
`--json` the same for programs.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deep_imports import PAGES, PROGRAMS, deep_imports
from formulas import GPU_KERNELS, implementations
from traced_files import ppo_step_files, request_files, run_step_files

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "relayrl"
READ_FIRST = PACKAGE / "algorithms" / "ppo.py"
BUILDER = "construction.py"
"""Which head and which algorithm belong to params is decided there; elsewhere heads and params are asked for what they do."""
NOT_COUNTED = ("envs/native/", "testing/", "bench/")
ROW_KERNELS = {
    *("join_rows", "attributes", "all_alike", "uuid_bytes", "trajectory_ids", "uuid_texts", "header_numbers"),
    *(
        "headers_fit",
        "spread_headers",
        "check_stream",
        "arrow_struct",
        "copy_records",
        "set_priorities",
        "find_priorities",
        "sum_grid",
    ),
    *("instruction_sets", "use_instruction_set"),
}
"""Compiled functions that move rows, or check and sum their bytes; all others are mathematics, and are called by
`relayrl.accelerator` alone."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, the most that it may be (None: reported, not held), and what it counts."""

    name: str
    value: int
    limit: int | None
    parts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        bound = "" if self.limit is None else f"  (at most {self.limit:,})"
        return f"{self.name:<58} {self.value:>7,}{bound}"


def figures() -> list[Figure]:
    """All of them; tracing takes some seconds."""
    packages, repeated = _files_per_package(), _repeated_names()
    reading, chains = _reading_list(READ_FIRST), _chains()
    deep = [f"{path.name}: {use}" for path in (*PAGES, *PROGRAMS) for use in deep_imports(path)]
    ppo, run, request = ppo_step_files(), run_step_files(), request_files()
    formulas, on_gpu = implementations(PACKAGE), implementations(PACKAGE, GPU_KERNELS)
    largest, largest_on_gpu = max(formulas.values(), key=len), max(on_gpu.values(), key=len)
    kernels = _mathematics_outside()
    return [
        Figure("files in the largest package", max(packages.values()), 12, _listed(packages)),
        Figure("file names that occur more than once", len(repeated), 0, repeated),
        Figure("lines to read for algorithms/ppo.py", sum(reading.values()), 1_500, _listed(reading)),
        Figure("isinstance on heads or params outside the builder", len(chains), 0, chains),
        Figure("deep imports in README, docs and examples", len(deep), 0, deep),
        Figure("files passed by a PPO step", len(ppo), 20, ppo),
        Figure("files passed by a PPO step of a run, bookkeeping included", len(run), None, run),
        Figure("files passed by a request, from the call to the disk", len(request), 18, request),
        Figure("most implementations of one formula", len(largest), 2, _listed_places(formulas)),
        Figure(
            "most implementations of one formula in the GPU's kernels", len(largest_on_gpu), 1, _listed_places(on_gpu)
        ),
        Figure("formulas whose expressions are found nowhere", sum(not found for found in formulas.values()), 0),
        Figure("compiled mathematics outside relayrl.accelerator", len(kernels), 0, kernels),
        Figure("lines of Python without native envs, testing and bench", _lines("*.py"), None),
        Figure("lines of C", _lines("*.[ch]"), None),
    ]


def _files_per_package() -> dict[str, int]:
    return dict(Counter(_relative(path.parent) for path in _modules()))


def _repeated_names() -> list[str]:
    places = defaultdict(list)
    for path in _modules():
        places[path.name].append(_relative(path))
    return sorted(" ".join(found) for found in places.values() if len(found) > 1)


def _reading_list(first: Path) -> dict[str, int]:
    """Modules that importing `first` runs, by what files say; not those imported by functions or for type checkers alone."""
    lines: dict[str, int] = {}
    left = [first]
    while left:
        path = left.pop()
        if _relative(path) not in lines:
            text = path.read_text()
            lines[_relative(path)] = text.count("\n")
            left += _imported(ast.parse(text))
    return lines


def _imported(tree: ast.AST) -> Iterator[Path]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{each.name}" for each in node.names]
            yield from filter(None, (_path_of(name) or _path_of(node.module) for name in names))
        elif isinstance(node, ast.Import):
            yield from filter(None, (_path_of(each.name) for each in node.names))
        else:
            yield from _imported(node)


def _path_of(module: str) -> Path | None:
    path = SOURCE.joinpath(*module.split("."))
    found = [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()]
    return found[0] if found and module.partition(".")[0] == "relayrl" else None


def _chains() -> list[str]:
    """Places that ask for the class of a head or of params: `isinstance`, `issubclass`, and `case` of a `match`."""
    asked = _heads_and_params()
    found = []
    for path in _modules():
        if path.name == BUILDER or _relative(path).startswith(NOT_COUNTED):
            continue
        tree = ast.parse(path.read_text())
        named = _tuples_of_classes(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.MatchClass):
                names = {ast.unparse(node.cls).rpartition(".")[2]}
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"isinstance", "issubclass"}:
                names = _names(node.args[1])
            else:
                continue
            names |= {each for name in names for each in named.get(name, ())}
            if names & asked:
                found.append(f"{_relative(path)}:{node.lineno}")
    return sorted(found)


def _heads_and_params() -> set[str]:
    """Classes called …Head or …Params, and whatever derives from one of them."""
    bases: dict[str, set[str]] = {}
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    found = {name for name in bases if name.endswith(("Head", "Params"))}
    while more := {name for name, own in bases.items() if name not in found and own & found}:
        found |= more
    return found


def _tuples_of_classes(tree: ast.Module) -> dict[str, set[str]]:
    """Names that a module gives to several classes at once."""
    assigned = (node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name))
    return {node.targets[0].id: _names(node.value) for node in assigned}  # type: ignore[attr-defined]


def _names(node: ast.AST) -> set[str]:
    return {
        each.id if isinstance(each, ast.Name) else each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Name | ast.Attribute)
    }


def _mathematics_outside() -> list[str]:
    stubs = ast.parse((PACKAGE / "compiled" / "_kernels.pyi").read_text())
    own = {node.name for node in stubs.body if isinstance(node, ast.FunctionDef | ast.ClassDef)} - ROW_KERNELS
    found = []
    for path in _modules():
        text = path.read_text()
        if _relative(path).startswith(("compiled/", "accelerator/")) or "relayrl.compiled" not in text:
            continue
        tree = ast.parse(text)
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & own
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
        asks = any((node.module or "").startswith("relayrl.compiled") and _gives_kernels(node) for node in imports)
        if asks and used:
            found.append(f"{_relative(path)}: {', '.join(sorted(used))}")
    return found


def _gives_kernels(node: ast.ImportFrom) -> bool:
    return any(each.name in {"kernels", "row_kernels", "_kernels"} for each in node.names)


def _lines(pattern: str) -> int:
    files = (path for path in PACKAGE.rglob(pattern) if not _relative(path).startswith(NOT_COUNTED))
    return sum(path.read_text().count("\n") for path in files)


def _modules() -> Iterable[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__init__.py")


def _relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def _listed(counted: dict[str, int]) -> list[str]:
    return [f"{number:>5} {name}" for name, number in sorted(counted.items(), key=lambda pair: -pair[1])]


def _listed_places(formulas: dict[str, list[str]]) -> list[str]:
    return [f"{len(places)} {name}: {', '.join(places) or 'none'}" for name, places in formulas.items()]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--verbose", action="store_true", help="with what each figure consists of")
    options = parser.parse_args()
    found = figures()
    if options.json:
        print(json.dumps([asdict(figure) for figure in found]))
        return
    for figure in found:
        print(figure)
        if options.verbose:
            print(*(f"    {part}" for part in figure.parts), sep="\n", end="\n" if figure.parts else "")


if __name__ == "__main__":
    main()
