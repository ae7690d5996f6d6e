"""`MultiAgentTrainer`: the facade's verbs for several agents, which may join at any time.

An agent has a policy of its own, or shares that of a group. `I…` algorithms judge each agent by what it sees, `MA…` ones by
what all of them see and do, from trajectories aligned by environment, episode and step. When an agent joins a
team that has been learning, the others keep what they have learned (`facade_growth`).
"""

from __future__ import annotations

from relayrl.data.columns import Trajectory
from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.training.facade_args import PolicyGroup
from relayrl.training.facade_growth import carry_over
from relayrl.training.facade_learner import make_learner
from relayrl.training.facade_trainer import TrajectoryTrainer


class MultiAgentTrainer(TrajectoryTrainer):
    """Learns the policies of all registered agents together."""

    def _first_groups(self) -> dict[str, PolicyGroup]:
        return {}

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Registered agents, group by group."""
        return tuple(agent_id for group in self._groups.values() for agent_id in group.agent_ids)

    def register_agent(
        self,
        agent_id: str,
        group: str | None = None,
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
    ) -> None:
        """Add an agent, with a policy of its own or with that of `group`; spaces are the trainer's unless given.

        May be called at any time. Registering an agent again where it is does nothing.
        """
        name = agent_id if group is None else group
        known = self._groups.get(name)
        if known is not None and agent_id in known.agent_ids:
            return
        if agent_id in self.agent_ids:
            raise ConfigError(f"agent {agent_id!r} has a policy already; it cannot join {name!r}")
        joined = self._joined(name, known, observation_space, action_space).with_agent(agent_id)
        groups = {**self._groups, name: joined}
        if self._learner is not None:
            learner = make_learner(self._entry, self.args, self.params, groups, self._kernel)
            carry_over(self._learner, learner, self._groups, groups, is_central=self._entry.is_central)
            self._learner = learner
        self._groups = groups

    def _joined(
        self, name: str, known: PolicyGroup | None, observation_space: Space | None, action_space: Space | None
    ) -> PolicyGroup:
        if known is None:
            masks = self.args.masks_actions
            seen = self.args.observations() if observation_space is None else observation_space
            done = self.args.actions(self.params) if action_space is None else action_space
            return PolicyGroup(name, seen, done, masks)
        given = ((observation_space, known.observation_space), (action_space, known.action_space))
        if any(space is not None and space != own for space, own in given):
            raise ConfigError(f"group {name!r} has other spaces; register the agent with a policy of its own")
        return known

    def _adopted(self, trajectory: Trajectory) -> Trajectory:
        for group in self._groups.values():
            if trajectory.agent_id in group.agent_ids:
                return group.adopt(trajectory, trajectory.agent_id)
        raise ConfigError(
            f"agent {trajectory.agent_id!r} is not registered; call register_agent({trajectory.agent_id!r}) first"
        )
