"""Whether what environments left in their buffers can be learned from: finite rewards, and observations as
`ObservationCheck` asks.

Every step pays for this, so the common case is a few array reductions; only when one of them fails are environments looked for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from relayrl.data.trees import Array, Tree, all_finite, leaves
from relayrl.envs.environment_settings import ObservationCheck
from relayrl.envs.failures import EnvFailure, FailureKind
from relayrl.envs.vector.env_buffers import EnvBuffers, EnvLayout
from relayrl.envs.vector.guarded_vector import ObservationChecker


class ResultChecker:
    """Checks the buffers of one loop after each step or reset."""

    def __init__(self, layout: EnvLayout, buffers: EnvBuffers, check: ObservationCheck) -> None:
        self._layout = layout
        self._buffers = buffers
        self._check = check
        groups = buffers.groups.values()
        rewards = [group.reward for group in groups]
        self._shown = tuple([*rewards, *_float_leaves(group.obs[half] for group in groups)] for half in (0, 1))
        self._final = _float_leaves(group.final_obs for group in groups)
        self._checkers = {
            name: ObservationChecker(group.observation_space, check) for name, group in layout.groups.items()
        }

    def find_failures(self, *, lanes_ended: bool, skip: set[int]) -> list[EnvFailure]:
        """One failure for each environment whose results fail the check, but for those in `skip`."""
        if self._check is ObservationCheck.OFF:
            return []
        if self._check is ObservationCheck.FINITE and self._seem_finite(lanes_ended):
            return []
        failures: dict[int, EnvFailure] = {}
        for name in self._checkers:
            for failure in self._find_in_group(name, lanes_ended):
                failures.setdefault(failure.env, failure)
        return [failure for env, failure in failures.items() if env not in skip]

    def _seem_finite(self, lanes_ended: bool) -> bool:
        return _all_finite(self._shown[self._buffers.half]) and not (lanes_ended and not _all_finite(self._final))

    def _find_in_group(self, name: str, lanes_ended: bool) -> list[EnvFailure]:
        arrays, agent_ids = self._buffers.groups[name], self._layout.groups[name].agent_ids
        failures = [
            EnvFailure(b, FailureKind.RAISED, f"agent {agent_ids[n]!r}: the reward is {arrays.reward[b, n]}")
            for b, n in np.argwhere(~np.isfinite(arrays.reward)).tolist()
        ]
        bad = self._checkers[name].find_bad(arrays.obs[self._buffers.half], arrays.active)
        if lanes_ended:
            bad += self._checkers[name].find_bad(arrays.final_obs, arrays.terminated | arrays.truncated)
        for lane in bad:
            reason = f"agent {agent_ids[lane.agent]!r}: {lane.reason}"
            failures.append(EnvFailure(lane.env, FailureKind.OBSERVATION, reason))
        return failures


def _float_leaves(trees: Iterable[Tree]) -> list[Array]:
    return [leaf for tree in trees for _, leaf in leaves(tree) if leaf.dtype.kind == "f"]


def _all_finite(arrays: Iterable[Array]) -> bool:
    for array in arrays:  # noqa: SIM110 - a generator would cost as much again as the reductions
        if not all_finite(array):
            return False
    return True
