"""Replay that stays on its device: a ring of joint transitions, one row per environment and step, sampled there.

What followed a row is kept beside it, so that drawing a transition is one
gather of each column. Uniform sampling and one-step returns only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relayrl.accelerator.device_accelerator import fused_gather
from relayrl.data.trees import Array
from relayrl.errors import CheckpointError, ConfigError
from relayrl.training.replay.joint_replay import GroupTransitions, JointTransitions

if TYPE_CHECKING:
    from relayrl.engines.device.resident_rollout import ResidentRollout

COLUMNS = ("obs", "action", "reward", "next_obs", "terminated")


def drawn(
    columns: Mapping[str, Tensor], draws: Tensor, num_rows: Tensor, gamma: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Which of a ring's rows uniform draws in [0, 1) are, and the columns of a `GroupTransitions` there."""
    rows = (draws * num_rows).long()
    found = {name: column.flatten(0, 1)[rows] for name, column in columns.items()}
    found["discount"] = torch.where(found.pop("terminated"), 0.0, gamma)
    return rows, found


class ResidentReplay:
    """A ring of at least `capacity` transitions of `num_envs` environments."""

    is_resident = True

    def __init__(self, capacity: int, num_envs: int, generator: torch.Generator) -> None:
        """`generator` draws which rows are sampled."""
        self.num_envs, self._generator = num_envs, generator
        self._gather = fused_gather(generator.device)
        self._num_steps = max(1, -(-capacity // num_envs))
        self.capacity = self._num_steps * num_envs
        self._groups: dict[str, dict[str, Tensor]] = {}  # [S, B, N, …] each
        self._head = self._size = 0  # steps
        self._num_rows = torch.zeros(1, dtype=torch.float64, device=generator.device)
        """`len(self)` where graphs read it."""

    def __len__(self) -> int:
        return self._size * self.num_envs

    def add(self, rollouts: Mapping[str, ResidentRollout]) -> None:
        """Append the rows of all groups."""
        num_steps = next(iter(rollouts.values())).num_steps
        if num_steps > self._num_steps:
            raise ConfigError(f"a rollout of {num_steps} steps does not fit the replay; raise params.buffer_size")
        before_end = min(num_steps, self._num_steps - self._head)
        for name, rollout in rollouts.items():
            if name not in self._groups:
                self._groups[name] = self._allocate(rollout)
            for column, ring in self._groups[name].items():
                rows = getattr(rollout, column).view(num_steps, *ring.shape[1:])
                ring[self._head : self._head + before_end].copy_(rows[:before_end])
                if before_end < num_steps:
                    ring[: num_steps - before_end].copy_(rows[before_end:])
        self._head = (self._head + num_steps) % self._num_steps
        self._size = min(self._size + num_steps, self._num_steps)
        self._num_rows.fill_(len(self))

    def _allocate(self, rollout: ResidentRollout) -> dict[str, Tensor]:
        def ring(column: Tensor) -> Tensor:
            shape = self._num_steps, rollout.num_envs, rollout.num_agents, *column.shape[2:]
            return torch.zeros(shape, dtype=column.dtype, device=column.device)

        return {name: ring(getattr(rollout, name)) for name in COLUMNS}

    def sample_on_device(self, num_rows: int, *, gamma: float) -> JointTransitions:
        """Draw transitions, with replacement; columns are tensors of the device. Capturable."""
        device = self._generator.device
        draws = torch.rand(num_rows, generator=self._generator, device=device, dtype=torch.float64)
        groups: dict[str, GroupTransitions] = {}
        rows: Any = draws
        for name, columns in self._groups.items():
            found = None if self._gather is None else self._gather(columns, draws, self._num_rows, gamma)
            rows, own = found or drawn(columns, draws, self._num_rows, gamma)
            valid: Any = torch.ones_like(own["reward"], dtype=torch.bool)
            given: Any = own
            groups[name] = GroupTransitions(**given, valid=valid, next_valid=valid, is_everybody=True)
        weight: Any = torch.ones(num_rows, device=device)
        return JointTransitions(groups, rows, weight)

    def cut(self) -> None:
        """Nothing follows on from the last rows: what followed them is kept beside them."""

    def get_state(self) -> dict[str, Any]:
        """Everything that it holds, on the host."""
        arrays = {
            f"{group}/{name}": column[: self._size].cpu().numpy()
            for group, columns in self._groups.items()
            for name, column in columns.items()
        }
        own = {"is_resident": True, "num_envs": self.num_envs, "head": self._head, "size": self._size}
        return {**own, "arrays": arrays}

    def set_state(self, state: Mapping[str, Any], spaces: Mapping[str, Any]) -> None:
        """Continue from `get_state`."""
        self._head, self._size = int(state["head"]), int(state["size"])
        if self._size > self._num_steps:
            raise CheckpointError("the replay was larger; resume with the same params.buffer_size")
        self._num_rows.fill_(len(self))
        device = self._generator.device
        for name in spaces:
            self._groups[name] = {
                column: self._restored(state["arrays"][f"{name}/{column}"], device) for column in COLUMNS
            }

    def _restored(self, saved: Array | Tensor, device: torch.device) -> Tensor:
        kept = torch.as_tensor(saved)
        ring = torch.zeros((self._num_steps, *kept.shape[1:]), dtype=kept.dtype, device=device)
        ring[: self._size] = kept.to(device)
        return ring
