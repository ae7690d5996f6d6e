"""`GroupLanes` of agents that die or appear inside an episode: flags, rewards and final observations by agent."""

from __future__ import annotations

from relayrl.envs.environment_contract import AgentGroup, FinalObservations
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray
from relayrl.envs.native.group_lanes import GroupLanes
from relayrl.envs.native.native_worlds import Worlds


class MortalLanes(GroupLanes):
    """Lanes that are active while `Worlds.alive` has their agent, and terminate when it no longer does."""

    def __init__(self, group: AgentGroup, worlds: Worlds, truncated: XArray, xp: ArrayNamespace) -> None:
        super().__init__(group, worlds, truncated, xp)
        shape = (len(truncated), group.num_agents)
        self._alive = worlds.alive[group.name]
        self._flags = xp.zeros(shape, "bool"), xp.zeros(shape, "bool")
        self._reward = xp.zeros(shape, "float32")

    def deliver_observations(self) -> None:
        super().deliver_observations()
        self._xp.copy(self._active, self._alive)

    def deliver_results(self) -> None:
        xp, acted, (terminated, truncated) = self._xp, self._active, self._flags
        xp.copy(terminated, acted & (self._world_flags[0] | ~self._alive))
        xp.copy(truncated, acted & self._alive & self._world_flags[1])
        xp.copy(self._reward, xp.cast(self._source_reward, "float32") * acted)
        self.deliver_observations()

    def final(self, ended: XArray) -> FinalObservations | None:
        """What those saw last who ended in the step just made, in worlds that go on as well; None where nobody did."""
        lanes = self._xp.nonzero((self._flags[0] | self._flags[1]).reshape(-1))
        if not len(lanes):
            return None
        num_agents = self._group.num_agents
        return FinalObservations(lanes // num_agents, lanes % num_agents, self._obs_by_lane[lanes])
