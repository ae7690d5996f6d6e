"""Unity simulators as one vector environment: every area of every simulator is an environment of its own.

All simulators are answered before the first one is waited for, so they compute side by side. A step is one exchange with each
of them, or more where nobody asks for a decision in it. Agents that do not ask are not active.

`scene_lanes` decides which agent is in which row, `behaviors` reads and writes messages. Rewards are the agent's own and its
group's, added up. With `on_failure: restart`, a simulator that fails is started again and its environments' step is void.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from relayrl.data.trees import index, map_tree
from relayrl.envs.agent_groups import mask_size
from relayrl.envs.environment_contract import (
    AgentGroup,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    new_env_ids,
)
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy
from relayrl.envs.failures import EnvFailure, FailureKind, RestartBudget
from relayrl.envs.unity.agent_columns import AgentColumns, SeenAgent
from relayrl.envs.unity.behaviors import Behavior, Membership, form_groups
from relayrl.envs.unity.scene_lanes import Census, Lane, LanePlan, SceneLanes
from relayrl.envs.unity.unity_settings import UnitySettings
from relayrl.envs.unity.unity_simulator import UnitySimulator
from relayrl.envs.vector.env_buffers import copy_exactly
from relayrl.errors import ConfigError, EnvError, PartialResetError

_MAX_AGENTS = 1 << 16
_MAX_SILENT = 10_000
"""Exchanges in which nobody asks for a decision, one after the other."""

logger = logging.getLogger(__name__)

Start = Callable[[int], UnitySimulator]


class UnityVector(VectorEnvironment):
    """The areas of `num_simulators` simulators, which `start` starts by number; `stop` is how one is left."""

    independent_streams = False

    def __init__(
        self,
        start: Start,
        stop: Callable[[UnitySimulator], None],
        num_simulators: int,
        options: UnitySettings,
        settings: EnvSettings,
    ) -> None:
        self._start, self._stop, self._options = start, stop, options
        self._restarts = settings.on_failure is FailurePolicy.RESTART
        self._budget = RestartBudget(settings.max_restarts_per_minute)
        self._parameters: list[dict[str, float]] = [dict(options.parameters) for _ in range(num_simulators)]
        self._num_steps, self._closed, self._has_reset = 0, False, False
        self._simulators: list[UnitySimulator] = []
        self._behaviors: dict[str, Behavior] = {}
        try:
            for number in range(num_simulators):  # they load side by side
                self._simulators.append(start(number))
            for simulator in self._simulators:
                simulator.greet()
            self._lay_out()
        except BaseException:
            self._closed = True
            for simulator in self._simulators:
                simulator.close(failed=True)
            raise

    def _lay_out(self) -> None:
        """Watch the first simulator for a while with idle actions: its behaviours and agents decide about groups and lanes."""
        simulator, census = self._simulators[0], Census()
        simulator.reset()
        num_left = self._options.warm_up
        while True:
            output = simulator.receive()
            self._behaviors = simulator.behaviors
            idle: dict[str, list[Any]] = {}
            for name, infos in output.rl_output.agentInfos.items():
                for info in infos.value:
                    if info.done:
                        census.leave(name, info.id)
            for name, infos in output.rl_output.agentInfos.items():
                for info in infos.value:
                    if not info.done:
                        census.see(name, info.id, info.group_id)
                        idle.setdefault(name, []).append(self._behavior(name).idle_action(info))
            if num_left <= 0 and census.behaviors:
                break
            if num_left <= -_MAX_SILENT:
                raise EnvError(f"no agent of the scene asked for a decision in {_MAX_SILENT} exchanges")
            num_left -= 1
            simulator.act(idle)
        simulator.statistics.take()  # of idle actions
        self._behaviors = {name: simulator.behaviors[name] for name in census.behaviors}
        members = form_groups(self._behaviors)
        num_areas, plans = census.plan(self._options.areas, self._agents_per_area(members))
        self._num_areas = num_areas
        num_envs = num_areas * len(self._simulators)
        self.groups: Mapping[str, AgentGroup] = _groups(self._behaviors, members, plans)
        self._all_columns = {
            name: AgentColumns.of(group, mask_size(group.action_space), num_envs) for name, group in self.groups.items()
        }
        self._columns = {name: self._all_columns[member.group] for name, member in members.items()}
        self._first_lane = {
            name: self.groups[member.group].agent_ids.index(_agent_ids(member, plans[name])[0])
            for name, member in members.items()
        }
        self._scenes = [SceneLanes(num_areas, plans) for _ in self._simulators]
        self._asked: list[list[tuple[str, int]]] = [[] for _ in self._simulators]
        self._over, self._failed = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)

    def _agents_per_area(self, members: Mapping[str, Membership]) -> dict[str, int]:
        wanted, groups = self._options.agents_per_area, {member.group for member in members.values()}
        if not isinstance(wanted, dict):
            return {} if wanted is None else dict.fromkeys(members, wanted)
        unknown = set(wanted) - groups
        if unknown:
            raise ConfigError(f"agents_per_area names {sorted(unknown)}; the behaviours are {sorted(groups)}")
        return {name: wanted[member.group] for name, member in members.items() if member.group in wanted}

    @property
    def built_num_envs(self) -> int:
        """How many environments the scenes hold, whatever number is asked for."""
        return len(self._over)

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        if num_envs != self.built_num_envs:
            raise ConfigError(f"the simulators hold {self.built_num_envs} environments; set num_envs to that")
        self.env_ids = new_env_ids(num_envs)
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        """Reset all scenes. Unity takes a seed when a simulator starts and at no other time (`environment.options.seed`)."""
        del seed
        self._require_open()
        if env_ids is not None and set(env_ids) != set(self.env_ids):
            raise PartialResetError("a Unity scene resets all of its areas at once; reset all environments")
        self._has_reset = False
        for columns in self._all_columns.values():
            columns.clear()
        numbers = range(len(self._simulators))
        well = [self._attempt(number, partial(self._begin_scene, number)) for number in numbers]
        for number in numbers:
            if well[number]:
                self._attempt(number, partial(self._take_in, number))
        self._has_reset = True
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        self._require_open()
        if not self._has_reset:
            raise EnvError("step() before reset(), or after an interrupted step; reset all environments first")
        for columns in self._all_columns.values():
            if columns.group.name not in actions:
                raise EnvError(f"step() without actions for group {columns.group.name!r}; give every group's")
            map_tree(copy_exactly, columns.action, actions[columns.group.name])
        answers = [self._answers(number) for number in range(len(self._simulators))]
        self._has_reset = False
        self._num_steps += 1
        before = [
            [(name, lane) for area in range(self._num_areas) for name, _, lane in scene.alive(area)]
            for scene in self._scenes
        ]
        for columns in self._all_columns.values():
            columns.clear()
        self._over[:] = self._failed[:] = False
        numbers = range(len(self._simulators))
        well = [
            self._attempt(number, partial(self._simulators[number].act, answers[number]), before[number])
            for number in numbers
        ]
        for number in numbers:
            if well[number]:
                self._attempt(number, partial(self._take_in, number), before[number])
        self._has_reset = True
        return VectorStep(
            {columns.group.name: columns.step() for columns in self._all_columns.values()},
            episode_over=self._over,
            failed=self._failed if self._failed.any() else None,
            recorded=[one for simulator in self._simulators for one in simulator.statistics.take()],
        )

    def build_observation(self) -> VectorReset:
        """The current observations, as the last `reset` or `step` gave them."""
        return VectorReset({columns.group.name: columns.observation() for columns in self._all_columns.values()})

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Send environment parameters to the scenes, with the next step or reset: one number for all, or one each.

        The areas of a scene share its parameters, so a scene gets those of its first area. What it has already is not sent.
        """
        for number, simulator in enumerate(self._simulators):
            wanted = {name: _number_of(given, number * self._num_areas) for name, given in values.items()}
            simulator.set_parameters(
                {name: own for name, own in wanted.items() if self._parameters[number].get(name) != own}
            )
            self._parameters[number].update(wanted)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for simulator in self._simulators:
                self._stop(simulator)

    def _answers(self, number: int) -> dict[str, list[Any]]:
        """The messages of the actions that a simulator's agents asked for."""
        scene, answers = self._scenes[number], dict[str, list[Any]]()
        for name, agent in self._asked[number]:
            lane = scene.lane(name, agent)
            assert lane is not None
            taken = index(self._columns[name].action, self._row(number, name, lane))
            answers.setdefault(name, []).append(self._behaviors[name].action(taken))
        return answers

    def _begin_scene(self, number: int) -> None:
        self._simulators[number].reset()
        self._scenes[number].forget()
        self._asked[number] = []

    def _take_in(self, number: int) -> None:
        """Receive until somebody asks for a decision, and write what came."""
        simulator = self._simulators[number]
        for _ in range(_MAX_SILENT):
            output = simulator.receive()
            self._require_known(simulator.behaviors)
            ended, asking = self._read(output.rl_output)
            self._write(number, ended, asking)
            if asking:
                return
            simulator.act({})
        raise EnvError(
            f"nobody asked for a decision in {_MAX_SILENT} exchanges with the simulator on port {simulator.port}"
        )

    def _read(self, rl_output: Any) -> tuple[list[SeenAgent], list[SeenAgent]]:
        """Who ended and who asks for a decision; everything is checked before anything is written."""
        ended: list[SeenAgent] = []
        asking: list[SeenAgent] = []
        if sum(len(infos.value) for infos in rl_output.agentInfos.values()) > _MAX_AGENTS:
            raise EnvError(f"the simulator sent more than {_MAX_AGENTS:,} agents in one exchange")
        for name in sorted(rl_output.agentInfos):  # maps of messages have no order
            for info in rl_output.agentInfos[name].value:
                behavior, reward = self._behavior(name), info.reward + info.group_reward
                if not np.isfinite(reward):
                    raise EnvError(f"the reward of agent {info.id} of {name!r} is {reward}")
                cut = info.max_step_reached
                seen = SeenAgent(
                    name, info.id, info.group_id, reward, behavior.observation(info), behavior.action_mask(info), cut
                )
                (ended if info.done else asking).append(seen)
        for what, some in (("ends", ended), ("asks", asking)):
            if len({(seen.behavior, seen.agent) for seen in some}) < len(some):
                raise EnvError(f"an agent {what} twice in one exchange; ids of agents must differ")
        return ended, asking

    def _write(self, number: int, ended: list[SeenAgent], asking: list[SeenAgent]) -> None:
        scene = self._scenes[number]
        for seen in ended:
            lane = scene.lane(seen.behavior, seen.agent)
            if lane is not None:  # else it came and went without an action
                columns, row = self._columns[seen.behavior], self._row(number, seen.behavior, lane)
                columns.reward[row] += seen.reward
                columns.end(row, seen.observation, seen.mask, is_cut=seen.max_step_reached)
                scene.end(seen.behavior, seen.agent)
        for area in scene.over():
            scene.begin(area)
            self._over[number * self._num_areas + area] = True
        now = {(seen.behavior, seen.agent): seen for seen in asking}
        new = []
        for seen in asking:
            lane = scene.lane(seen.behavior, seen.agent)
            if lane is None:
                new.append(seen)
            else:
                self._columns[seen.behavior].reward[self._row(number, seen.behavior, lane)] += seen.reward
        for seen in sorted(new, key=lambda one: (one.behavior, one.group, one.agent)):
            lane, is_used = scene.find(seen.behavior, seen.group)
            if is_used:
                self._cut(number, lane.area, now)
            scene.take(seen.behavior, seen.agent, seen.group, lane)
        for seen in asking:
            lane = scene.lane(seen.behavior, seen.agent)
            assert lane is not None
            self._columns[seen.behavior].show(self._row(number, seen.behavior, lane), seen)
        self._asked[number] = [(seen.behavior, seen.agent) for seen in asking]

    def _cut(self, number: int, area: int, now: Mapping[tuple[str, int], SeenAgent]) -> None:
        """End the episode of an area in which agents go on: they are truncated, and go on in the next one."""
        scene = self._scenes[number]
        for name, agent, lane in scene.alive(area):
            columns, row = self._columns[name], self._row(number, name, lane)
            if (name, agent) in now:
                seen = now[name, agent]
                columns.end(row, seen.observation, seen.mask, is_cut=True)
            else:
                columns.end(row, *columns.last(row), is_cut=True)
        scene.begin(area)
        self._over[number * self._num_areas + area] = True

    def _attempt(self, number: int, act: Callable[[], None], before: Sequence[tuple[str, Lane]] | None = None) -> bool:
        """Do something with a simulator. Where it fails, raise, or start it again, make its environments' step void, and give
        False: new episodes have begun in it."""
        try:
            act()
        except EnvError as error:
            failure = EnvFailure(number * self._num_areas, FailureKind.RAISED, str(error))
            note = "" if self._restarts else "; environment.on_failure=restart starts it again"
            if not self._restarts or not self._budget.spend():
                self._simulators[number].close(failed=True)
                raise self._error(failure, note) from error
            logger.warning("a Unity simulator failed and is started again", extra={"reason": str(error)})
            if before is not None:
                self._void(number, before)
            self._restart(number, failure)
            return False
        return True

    def _restart(self, number: int, failure: EnvFailure) -> None:
        self._simulators[number].close(failed=True)
        try:
            self._simulators[number] = self._start(number)
            self._simulators[number].greet()
            self._simulators[number].set_parameters(self._parameters[number])
            self._begin_scene(number)
            self._take_in(number)
        except (EnvError, ConfigError) as error:
            raise self._error(failure, f" (and could not be started again: {error})") from error

    def _void(self, number: int, before: Sequence[tuple[str, Lane]]) -> None:
        """Make the present step of a simulator's environments a failed one: no rewards, and who was there is truncated."""
        rows = slice(number * self._num_areas, (number + 1) * self._num_areas)
        for columns in self._all_columns.values():
            columns.reward[rows] = 0.0
            columns.active[rows] = columns.terminated[rows] = columns.truncated[rows] = False
            columns.final = {row: last for row, last in columns.final.items() if not rows.start <= row[0] < rows.stop}
        for name, lane in before:
            row = self._row(number, name, lane)
            self._columns[name].end(row, *self._columns[name].last(row), is_cut=True)
        self._over[rows] = self._failed[rows] = True

    def _error(self, failure: EnvFailure, note: str) -> EnvError:
        env_id = self.env_ids[failure.env] if self.env_ids else uuid.uuid4()
        with contextlib.suppress(EnvError):
            self.close()
        return failure.as_error(env_id, self._options.seed, self._num_steps, note)

    def _row(self, number: int, behavior: str, lane: Lane) -> tuple[int, int]:
        """Environment and agent of a simulator's lane, in the columns of its group."""
        return number * self._num_areas + lane.area, self._first_lane[behavior] + lane.n

    def _behavior(self, name: str) -> Behavior:
        if name not in self._behaviors:
            raise EnvError(f"agents of {name!r:.100} appeared, a behaviour that the simulator has not announced")
        return self._behaviors[name]

    def _require_known(self, announced: Mapping[str, Behavior]) -> None:
        """All behaviours must be known before the first reset, and be the same in all simulators."""
        for name, behavior in announced.items():
            if name not in self._behaviors:
                raise EnvError(
                    f"behaviour {name!r:.100} appeared after the first {self._options.warm_up} exchanges; raise "
                    "environment.options.warm_up, so that it is seen before the run begins"
                )
            if self._behaviors[name] != behavior:
                raise EnvError(f"behaviour {name!r:.100} has other sensors or actions than in the first simulator")

    def _require_open(self) -> None:
        if self._closed:
            raise EnvError("this environment is closed, by close() or by a failure; make a new one")


def _number_of(given: Any, env: int) -> float:
    values = np.ravel(given)
    return float(values[env] if values.size > 1 else values[0])


def _agent_ids(member: Membership, plan: LanePlan) -> tuple[str, ...]:
    is_alone = plan.num_lanes == 1
    return (member.prefix,) if is_alone else tuple(f"{member.prefix}_{n}" for n in range(plan.num_lanes))


def _groups(
    behaviors: Mapping[str, Behavior], members: Mapping[str, Membership], plans: Mapping[str, LanePlan]
) -> dict[str, AgentGroup]:
    ids: dict[str, tuple[str, ...]] = {}
    for name, member in members.items():
        ids[member.group] = (*ids.get(member.group, ()), *_agent_ids(member, plans[name]))
    some = {member.group: behaviors[name] for name, member in members.items()}  # those of a group are alike
    return {
        group: AgentGroup(
            group, own, some[group].observation_space, some[group].action_space, bool(some[group].branches)
        )
        for group, own in ids.items()
    }
