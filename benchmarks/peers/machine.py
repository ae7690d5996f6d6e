"""What a figure was measured on, in a few words that say nothing else about the machine."""

from __future__ import annotations

import functools
import os
import platform
from importlib.metadata import version
from pathlib import Path


@functools.cache
def machine_description() -> str:
    """Cores, processor, Python and torch."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({_processor()}), Python {platform.python_version()}, torch {version('torch')}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()
