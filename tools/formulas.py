"""Where each formula is implemented, found by an expression that every implementation of it contains.

A formula has a reference and at most one accelerated twin for each kind of machine: by the CPU's kernels, and by the GPU's. An
expression that matches nowhere is out of date: mend it here. Two lines of one function are one implementation, and a call of
torch's own function is none.
"""

from __future__ import annotations

import re
from pathlib import Path

FORMULAS = {
    "GAE": r"gamma \* lam\b",
    "V-trace": r"lam \* np\.minimum\(ratio, c_bar\)",
    "clipped surrogate": r"1\.0f? - [\w.>-]*clip_ratio\b",
    "KL estimate": r"ratio(\.exp\(\))? - 1\.0f? - log_ratio",
    "value loss": r"0\.5 \* \(value - target\)\.square\(\)\.mean|error = value - (rows\.)?target",
    "clipped value loss": r"old(_value)? \+ (np\.clip\(|\(value - old_value\)\.clamp\(|fmaxf\()",
    "log-probability of a normal": r"0\.5f? \* (z \* z|scaled \* scaled)",
    "entropy of a normal": r"1\.0 \+ (LOG_2PI|log_2pi)",
    "log-softmax": r"def _?log_softmax\(|void log_softmax\(",
    "log-probability of bits": r"-\(-parameters \* sign\)\.logaddexp|-np\.logaddexp\(0\.0, -parameters \*",
    "entropy of bits": r"logaddexp.*\(1\.0 - (p|parameters\.sigmoid\(\))\) \* parameters",
    "log-probability of a squashed normal": r"0\.5 \* noise(\.square\(\)| \* noise) - log_std",
    "SAC's soft value and policy loss": r"temperature(\(\w+\))?\)? \* (np\.asarray\(choice\.)?logp\b",
    "TD target": r"reward \+ [\w.]*discount \* ",
    "Adam step": r"1\.0 - (BETA1|beta1|adam->beta1|self\._betas\[0\])\)",
    "soft update": r"\.lerp_\([\w.]+, (self\.)?tau\)|\+= [\w>-]*share \* \([\w>-]*source\[i\] - ",
}
NOT_SEARCHED = ("envs/", "testing/", "bench/", "compiled/self_check.py")
"""Environments have formulas of their own; the others repeat some in order to check them."""
GPU_KERNELS = "accelerator/gpu/"
_BEGINS = re.compile(r"^\s*(def |class |static |PyObject )")


def implementations(package: Path, part: str = "") -> dict[str, list[str]]:
    """`file:line` of each formula's implementations, in a part of the package; without one, in all but the GPU's kernels."""
    found: dict[str, list[str]] = {name: [] for name in FORMULAS}
    for path in sorted(each for pattern in ("*.py", "*.[ch]") for each in package.rglob(pattern)):
        place = str(path.relative_to(package))
        is_searched = place.startswith(part) if part else not place.startswith((*NOT_SEARCHED, GPU_KERNELS))
        if not is_searched:
            continue
        lines = path.read_text().splitlines()
        for name, expression in FORMULAS.items():
            functions = {_function(lines, at): at for at in _matches(lines, expression)}
            found[name] += [f"{path.relative_to(package)}:{at + 1}" for at in functions.values()]
    return found


def _matches(lines: list[str], expression: str) -> list[int]:
    return [at for at, line in enumerate(lines) if re.search(expression, line) and '"""' not in line]


def _function(lines: list[str], at: int) -> int:
    """Where the function begins that holds a line."""
    return next((begin for begin in range(at, -1, -1) if _BEGINS.match(lines[begin])), 0)
