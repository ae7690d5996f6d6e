"""No test asserts how long something took: that is for `relayrl bench`, and fails where a machine is busy."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CLOCKS = {"perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "time", "time_ns"}
TESTS = sorted(Path(__file__).parent.rglob("*.py"))


def measured_asserts(source: str) -> list[int]:
    """Lines of asserts that compare a clock's reading, or what was computed from one."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    clocks: set[str] = set(CLOCKS)

    def is_time(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):  # of what is called with a time, the result need not be one
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            return name in clocks or (name in {"min", "max", "sum", "abs", "round"} and any(map(is_time, node.args)))
        if isinstance(node, ast.Name):
            return node.id in clocks - CLOCKS
        return any(map(is_time, ast.iter_child_nodes(node)))

    before = None
    while before != clocks:  # a name that holds a time, and a function that returns one, are clocks as well
        before = set(clocks)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and is_time(node.value):
                clocks |= {
                    name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                }
        for function in functions:
            returned = [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
            if any(is_time(node.value) for node in returned if node.value is not None):
                clocks.add(function.name)
    compared = (node for each in ast.walk(tree) if isinstance(each, ast.Assert) for node in ast.walk(each.test))
    return sorted({node.lineno for node in compared if isinstance(node, ast.Compare) and is_time(node)})


def test_no_assert_compares_a_measured_time() -> None:
    found = {str(path): lines for path in TESTS if (lines := measured_asserts(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("start = time.monotonic()\nassert time.monotonic() - start < 3", [2]),
        ("def took() -> float:\n    return perf_counter() - begin\nassert min(took() for _ in range(3)) < 1.0", [3]),
        ("a = time.perf_counter()\nb = time.perf_counter() - a\nassert x == 1 and b < 2", [3]),
        ("assert router.stop(time.monotonic() + 10.0) == []", []),
        ("assert row['time'] == 2.0", []),
    ],
)
def test_the_scan_sees_times_and_nothing_else(source: str, lines: list[int]) -> None:
    assert measured_asserts(source) == lines
