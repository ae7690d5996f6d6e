"""`FrameStackObservation` over all lanes of a group: each lane's last observations, oldest first.

A lane's stack begins anew with its episode, and where it loses a life. Observations on which an agent does not act mean
nothing, so they are not stacked: an agent that takes turns sees what it saw at its own last turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from gymnasium.vector.utils import batch_space

from relayrl.data.trees import Array, Tree, allocate, leaves, map_tree, unflatten
from relayrl.envs.environment_contract import AgentGroup, FinalObservations, GroupObservation, GroupStep
from relayrl.envs.wrappers.group_wrappers import GroupWrapper

PADDINGS = ("reset", "zero")


class FrameStack(GroupWrapper):
    """The last `stack_size` observations of every lane."""

    def __init__(self, group: AgentGroup, num_envs: int, *, stack_size: int, padding_type: str = "reset") -> None:
        super().__init__(group, num_envs)
        if type(stack_size) is not int or stack_size < 1:
            raise ValueError(f"FrameStackObservation needs a stack_size of at least 1, not {stack_size!r}")
        if padding_type not in PADDINGS:
            raise ValueError(f"padding_type {padding_type!r} is not one of {', '.join(PADDINGS)}")
        self.space = batch_space(group.observation_space, stack_size)
        self._pads_with_first = padding_type == "reset"
        self._frames: Tree = allocate(self.space, self._lanes)  # [B, N, K, …]
        self._is_new = np.ones(self._lanes, np.bool_)

    def begin(self, seen: GroupObservation, began: Array) -> GroupObservation:
        self._is_new[began] = True
        self._push(seen.obs, seen.active & began[:, None])
        return self.observe(seen)

    def observe(self, seen: GroupObservation) -> GroupObservation:
        return replace(seen, obs=self._frames)

    def advance(self, step: GroupStep, over: Array, failed: Array | None) -> GroupStep:
        final = None if step.final is None else self._ended(step.final, failed)
        self._is_new |= step.terminated | step.truncated | over[:, None]
        self._push(step.obs, step.active)
        return replace(step, obs=self._frames, final=final)

    def _push(self, obs: Tree, lanes: Array) -> None:
        """Add the newest observations of `lanes` [B, N]; stacks that are new begin with them."""
        begins = lanes & self._is_new
        goes_on = lanes & ~begins
        moves_all, any_begins = bool(goes_on.all()), bool(begins.any())
        for (_, stack), (_, newest) in zip(leaves(self._frames), leaves(obs), strict=True):
            if moves_all:
                stack[:, :, :-1] = stack[:, :, 1:]
                stack[:, :, -1] = newest
            elif goes_on.any():
                stack[goes_on] = np.concatenate([stack[goes_on][:, 1:], newest[goes_on][:, None]], axis=1)
            if any_begins:
                stack[begins] = newest[begins][:, None] if self._pads_with_first else 0
                stack[begins, -1] = newest[begins]
        self._is_new &= ~lanes

    def _ended(self, final: FinalObservations, failed: Array | None) -> FinalObservations:
        """Stacks that end with what lanes saw last; that of a failed one is the last good one, as it is."""
        where = (final.env, final.agent)
        stays = np.zeros(len(final.env), bool) if failed is None else failed[final.env]
        is_new = self._is_new[where]

        def ended(stack: Array, last: Array) -> Array:
            before = stack[where]
            after = np.concatenate([before[:, 1:], last[:, None]], axis=1)
            if is_new.any():
                after[is_new, :-1] = last[is_new][:, None] if self._pads_with_first else 0
            after[stays] = before[stays]
            return after

        return replace(final, obs=map_tree(ended, self._frames, final.obs))

    def get_state(self) -> dict[str, Array]:
        frames = {f"frames{i}": leaf.copy() for i, (_, leaf) in enumerate(leaves(self._frames))}
        return {**frames, "is_new": self._is_new.copy()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        count = sum(1 for _ in leaves(self._frames))
        self._frames = unflatten(self.space, iter([np.array(state[f"frames{i}"]) for i in range(count)]))
        self._is_new = np.array(state["is_new"], np.bool_)
