"""The arrays of one group of agents of Unity scenes, lane by lane, and what its ended lanes saw last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relayrl.data.trees import Array, Tree, allocate, index, map_tree, write
from relayrl.envs.environment_contract import AgentGroup, FinalObservations, GroupObservation, GroupStep


@dataclass(frozen=True, slots=True)
class SeenAgent:
    """One agent in one exchange."""

    behavior: str
    agent: int
    group: int
    reward: float
    observation: Tree
    mask: Array | None
    max_step_reached: bool


@dataclass(slots=True)
class AgentColumns:
    """The arrays of one group, and what its lanes that ended in the present step saw last."""

    group: AgentGroup
    obs: Tree
    active: Array
    mask: Array | None
    action: Tree
    reward: Array
    terminated: Array
    truncated: Array
    final: dict[tuple[int, int], tuple[Tree, Array | None]]

    @classmethod
    def of(cls, group: AgentGroup, width: int, num_envs: int) -> AgentColumns:
        """For `num_envs` environments; `width` is that of the group's action masks, 0 where there are none."""
        lanes = (num_envs, group.num_agents)
        return cls(
            group,
            allocate(group.observation_space, lanes),
            np.zeros(lanes, np.bool_),
            np.ones((*lanes, width), np.bool_) if width else None,
            allocate(group.action_space, lanes),
            np.zeros(lanes, np.float32),
            np.zeros(lanes, np.bool_),
            np.zeros(lanes, np.bool_),
            {},
        )

    def clear(self) -> None:
        """Begin a step."""
        self.reward[:] = 0.0
        for flags in (self.active, self.terminated, self.truncated):
            flags[:] = False
        self.final = {}

    def end(self, row: tuple[int, int], observation: Tree, mask: Array | None, *, is_cut: bool) -> None:
        """The lane in `row` ends with what it saw last."""
        self.terminated[row], self.truncated[row] = not is_cut, is_cut
        self.final[row] = observation, mask

    def show(self, row: tuple[int, int], seen: SeenAgent) -> None:
        """The lane in `row` acts on what it sees."""
        write(self.obs, row, seen.observation)
        self.active[row] = True
        if self.mask is not None:
            self.mask[row] = seen.mask

    def last(self, row: tuple[int, int]) -> tuple[Tree, Array | None]:
        """What was shown last in a lane."""
        return map_tree(np.copy, index(self.obs, row)), None if self.mask is None else self.mask[row].copy()

    def observation(self) -> GroupObservation:
        """What the group sees now."""
        return GroupObservation(self.obs, self.active, self.mask)

    def step(self) -> GroupStep:
        """What came of the present step."""
        rewards, flags = self.reward, (self.terminated, self.truncated)
        return GroupStep(
            self.obs,
            self.active,
            self.mask,
            reward=rewards,
            terminated=flags[0],
            truncated=flags[1],
            final=self._finals(),
        )

    def _finals(self) -> FinalObservations | None:
        if not self.final:
            return None
        rows = sorted(self.final)
        obs = allocate(self.group.observation_space, (len(rows),))
        for k, row in enumerate(rows):
            write(obs, k, self.final[row][0])
        masks = None if self.mask is None else np.stack([_mask_of(self.final[row][1]) for row in rows])
        env, agent = np.array(rows, np.int64).T
        return FinalObservations(env, agent, obs, masks)


def _mask_of(mask: Array | None) -> Array:
    assert mask is not None
    return mask
