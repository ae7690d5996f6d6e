"""Columns of a batch on the host or on a device: taking rows of them, joining them, moving them.

On the CPU columns are arrays, which kernels and torch view without a copy. An update on another device moves them there once,
as they are (bytes stay bytes), takes its minibatches of them there, and gives its metrics once: the host waits inside an update
only where a KL limit needs its number. A column is an array or a tensor, a tree of them, or
rows of a kind of their own (`SharedRows`, `image_update.ObservationRows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relayrl.algorithms.losses import require_finite
from relayrl.algorithms.updates.sequences import Sequences
from relayrl.data.trees import map_tree
from relayrl.models.compute_device import moved, moved_tree
from relayrl.models.networks.shared_rows import SharedRows

Number = float | Tensor
"""A metric: on a device it is fetched with all others at the end of an update."""


@dataclass(frozen=True, slots=True)
class SharedTensors:
    """`SharedRows` on a device: rows that lie in parts side by side, each a line of a table."""

    parts: tuple[tuple[Tensor, Tensor], ...]

    def __len__(self) -> int:
        return len(self.parts[0][1])

    def __getitem__(self, where: Any) -> SharedTensors:
        """Some of the rows."""
        return SharedTensors(tuple((table, line[where]) for table, line in self.parts))

    def laid_out(self) -> Tensor:
        """[M, I] the rows themselves."""
        return torch.cat([table[line] for table, line in self.parts], -1)


def on_device(column: Any, device: torch.device) -> Any:
    """A column on a device, or a batch of them; what sequences consist of stays on the host, which packs them."""
    if column is None or isinstance(column, Tensor | Sequences):
        return column
    if isinstance(column, SharedRows):
        pairs = ((np.asarray(part.table, np.float32), part.line) for part in column.parts)
        return SharedTensors(tuple((moved(table, device), moved(line, device)) for table, line in pairs))
    if isinstance(column, np.ndarray | dict | tuple):
        return moved_tree(column, device)
    own = {each.name: on_device(getattr(column, each.name), device) for each in fields(column)}
    return replace(column, **own)


def row_index(where: Any, device: torch.device) -> Any:
    """Rows as a device's columns are indexed by: a slice, or an index that lies there."""
    if not isinstance(where, np.ndarray):
        return where
    if where.dtype == np.bool_:  # whose number of rows a device would have to ask for
        return tuple(moved(places, device) for places in np.nonzero(where))
    return moved(where, device)


def some_rows(column: Any, where: Any) -> Any:
    """Some rows of a column; `where` is a slice, an index or a mask."""
    if column is None:
        return None
    if not isinstance(where, np.ndarray):
        return map_tree(lambda leaf: leaf[where], column)
    return map_tree(lambda leaf: leaf[row_index(where, leaf.device) if isinstance(leaf, Tensor) else where], column)


def as_number(scalar: Tensor) -> Number:
    """A metric, which stays where it is on a device."""
    return float(scalar) if scalar.device.type == "cpu" else scalar


def finite_numbers(sums: Mapping[str, Number]) -> dict[str, float]:
    """Sums over the steps of an update on the host; raises where a loss is not finite, before anything is saved."""
    found = as_numbers(sums)
    for name, rate in (("policy", "pi_lr"), ("value", "vf_lr")):
        require_finite(found.get(f"{name}/loss", 0.0), name, rate)
    return found


def as_numbers(metrics: Mapping[str, Number]) -> dict[str, float]:
    """Metrics on the host: those of a device come in one transfer."""
    waiting = {name: number for name, number in metrics.items() if isinstance(number, Tensor)}
    if not waiting:
        return {name: float(number) for name, number in metrics.items()}
    fetched = torch.stack([number.detach().double() for number in waiting.values()]).cpu().tolist()
    return {**metrics, **dict(zip(waiting, fetched, strict=True))}
