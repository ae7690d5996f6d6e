"""What the classic control environments have in common: one agent, a flat observation."""

from __future__ import annotations

from relayrl.data.trees import Space
from relayrl.envs.environment_contract import SINGLE_AGENT, AgentGroup
from relayrl.envs.native.array_namespace import ArrayNamespace, DTypeName
from relayrl.envs.native.native_worlds import Worlds


class SingleAgentWorlds(Worlds):
    """The arrays that every one-agent environment hands out; state and equations are the subclass's."""

    def __init__(self, xp: ArrayNamespace, dtype: DTypeName, num_worlds: int, observation_size: int) -> None:
        self.xp = xp
        self.dtype: DTypeName = dtype
        observation = xp.zeros((num_worlds, 1, observation_size), dtype)
        self.observation_columns = xp.permute(observation[:, 0, :], (1, 0))
        """[O, B] view of the observations."""
        self.observations = {SINGLE_AGENT: observation}
        self.rewards = {SINGLE_AGENT: xp.zeros((num_worlds, 1), dtype)}
        self.terminated = xp.zeros((num_worlds,), "bool")


def single_agent_group(observation_space: Space, action_space: Space) -> dict[str, AgentGroup]:
    """The only group of an environment with one agent."""
    return {SINGLE_AGENT: AgentGroup(SINGLE_AGENT, (SINGLE_AGENT,), observation_space, action_space)}
