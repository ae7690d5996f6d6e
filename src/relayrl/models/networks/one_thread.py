"""Sums that must not depend on how many threads torch may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute on one thread: how it cuts sums, and so how they are rounded, depends on how many it may use."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
