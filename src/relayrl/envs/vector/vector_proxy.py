"""A vector environment in front of another one: whatever it does not change is the other's.

Those that change what is seen, who is grouped with whom or where arrays live derive from it, so that nothing is forgotten on
the way. It cannot know how results are changed: `reset`, `step` and `build_observation` are the subclass's.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import Relabelled, StatefulEnvironment, VectorEnvironment
from relayrl.envs.rendering import RenderMode


class VectorProxy(VectorEnvironment):
    """Gives everything to `_env`."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._env = env
        self.groups, self.env_ids, self.device, self.drawing = env.groups, env.env_ids, env.device, env.drawing
        self.state_space, self.independent_streams = env.state_space, env.independent_streams
        self.state_repeats_observations, self.has_goals = env.state_repeats_observations, env.has_goals

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        self.env_ids = self._env.init_num_envs(num_envs)
        return self.env_ids

    def give_states(self, wanted: bool) -> None:
        self._env.give_states(wanted)

    def set_parameters(self, values: Mapping[str, Array]) -> None:
        self._env.set_parameters(values)

    def begin_lessons(self, lessons: Sequence[int]) -> None:
        self._env.begin_lessons(lessons)

    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        return self._env.relabel(achieved, desired)

    @property
    def rates_episodes(self) -> bool:
        return self._env.rates_episodes

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        return self._env.performance_return(rewards)

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        return self._env.frames(envs, mode)

    def final_frames(self) -> Mapping[int, Array]:
        return self._env.final_frames()

    def close(self) -> None:
        self._env.close()


class StatefulProxy(StatefulEnvironment):
    """The state of an environment whose state can be saved; mixed into a proxy of it."""

    _saved: StatefulEnvironment

    def get_state(self) -> dict[str, Array]:
        return self._saved.get_state()

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._saved.set_state(state)
