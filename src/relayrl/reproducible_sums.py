"""Asks Intel's MKL, which torch multiplies matrices with, for products that depend on nothing but their numbers.

By itself it adds up a row differently with another number of threads or of rows beside it: runs with other `threads`, or with
their environments divided otherwise among collectors, would end with other parameters. Its strict mode costs nothing that was
measurable for networks of this package's sizes. It reads the variable at its first product: whoever multiplies with torch
before importing `relayrl` sets it on their own.
"""

from __future__ import annotations

import os

VARIABLE = "MKL_CBWR"
STRICT = "AUTO,STRICT"


def ask_for_reproducible_sums() -> None:
    """Nothing where the user has set the variable, or where MKL has no strict mode: it has one for Intel's processors."""
    if VARIABLE not in os.environ and "GenuineIntel" in _processor():
        os.environ[VARIABLE] = STRICT


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            return file.read(200).decode("ascii", "replace")
    except OSError:
        return os.environ.get("PROCESSOR_IDENTIFIER", "")  # Windows
