"""Which native environments step by compiled kernels: those whose arrays are NumPy's, in float32.

A kernel gives the numbers of the NumPy lines beside which it is called, to the last bit; tests hold it to them.
"""

from __future__ import annotations

from types import ModuleType

from relayrl.compiled.loader import row_kernels
from relayrl.envs.native.array_namespace import ArrayNamespace, DTypeName


def step_kernels(xp: ArrayNamespace, dtype: DTypeName) -> ModuleType | None:
    """The kernels for arrays of this kind; None where there are none."""
    return row_kernels() if xp.device == "cpu" and dtype == "float32" else None
