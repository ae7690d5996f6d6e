"""How many cores this process may use: those of its affinity, and no more than its control groups allow.

A container that may use two of a machine's 64 cores often sees all of them; threads beyond its share are throttled.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


@cache
def num_cores() -> int:
    """Cores that this process may use, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(CGROUPS, MEMBERSHIP)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cgroup_quota(root: Path, membership: Path) -> float | None:
    """Cores that the control groups of this process, versions 1 and 2, and the groups above them allow; None: no limit."""
    quotas = [quota for folder in _folders(root, membership) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _folders(root: Path, membership: Path) -> list[Path]:
    """Folders that may hold limits. In a container, what lies below the root is often the process's own group already."""
    bases = {root: "/", root / "cpu": "/", root / "cpu,cpuacct": "/"}
    for line in _text(membership).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            bases[root] = group
        elif "cpu" in controllers.split(","):
            bases[root / "cpu"] = bases[root / "cpu,cpuacct"] = group
    found = []
    for base, group in bases.items():
        own = base / group.strip("/")
        found += [folder for folder in (own, *own.parents) if folder.is_relative_to(base)]
    return found


def _quota(folder: Path) -> float | None:
    """`cpu.max` is "quota period" or "max period"; version 1 has a file for each, and -1 for no limit."""
    words = _text(folder / "cpu.max").split()
    words = words or [*_text(folder / "cpu.cfs_quota_us").split(), *_text(folder / "cpu.cfs_period_us").split()]
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
