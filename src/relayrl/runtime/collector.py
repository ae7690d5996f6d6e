"""The collector: steps a vector environment with the newest policies and fills columns. No objects per step, no torch.

Lanes are environment-major: environment `b`'s agent `n` of a group is lane `b * N + n`, so `[B, N, …]` arrays are `[L, …]` by a
reshape that copies nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl.accelerator.native_rollouts import BlockEnds, NativeRollouts, RunningEpisodes, native_rollouts
from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.state_rows import StateBuilder
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.data.trees import Array, Tree, map_tree
from relayrl.envs.environment_contract import (
    AgentGroup,
    GroupObservation,
    Recorded,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
)
from relayrl.errors import ActionMaskError, ConfigError, EnvError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.lane_memory import LaneMemory
from relayrl.runtime.episode_rating import EpisodeRating


@dataclass(slots=True)
class EndedEpisodes:
    """Episodes that ended, in order: returns as means over agents, lengths in steps, and each group's own returns."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    group_returns: dict[str, list[float]] = field(default_factory=dict)
    # [E, N] of each group, one array behind the other.
    agent_returns: dict[str, list[Array]] = field(default_factory=dict, compare=False)
    # The steps that the collector had taken when they began, and when they ended.
    began_at: list[int] = field(default_factory=list, compare=False)
    num_steps: list[int] = field(default_factory=list, compare=False)
    # What simulators recorded meanwhile, whatever episode it belongs to.
    recorded: list[Recorded] = field(default_factory=list, compare=False)


OnEnded = Callable[[Array, Array, Mapping[str, Array]], None]
"""Takes environments [E] whose episodes ended, whether they did so without a failure [E], and returns [E, N] by group."""


@contextmanager
def held(actors: Iterable[Actor]) -> Iterator[None]:
    """Nobody changes the actors' parameters inside."""
    all_actors = list(actors)
    for actor in all_actors:
        actor.hold()
    try:
        yield
    finally:
        for actor in all_actors:
            actor.release()


class RolloutCollector(ABC):
    """Where rollouts come from: environments of this process (`Collector`), or of others."""

    @abstractmethod
    def collect(self, policy_version: int | Mapping[str, int], num_steps: int | None = None) -> dict[str, Rollout]:
        """A rollout per group, of at most `num_steps` steps of every environment."""

    @abstractmethod
    def cut_off(self, policy_version: int | Mapping[str, int], error: BaseException) -> dict[str, Rollout]:
        """What `collect` had when it raised `error`, ended behind its last good step; or nothing."""

    @abstractmethod
    def restart(self) -> None:
        """Begin new episodes in all environments, after `cut_off`."""

    @abstractmethod
    def explore(self, exploration: Mapping[str, Exploration]) -> None:
        """Let the groups' actors explore as a policy snapshot says."""

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Steps of each environment so far."""

    @abstractmethod
    def take_ended(self) -> EndedEpisodes:
        """Episodes that ended since the last call."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What decides the next block."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any], *, seed: int) -> bool:
        """Continue from `state_dict`. Where the environment was not saved, new episodes begin from `seed`: gives False."""


class Collector(RolloutCollector):
    """Collects blocks of `num_steps` steps; episodes run on from block to block.

    With `records_logp`, rows hold the log-probability that the acting policy gave: needed where a rollout is learned from by a
    newer policy than the one that made it. With `records_states`, they hold global states. With `records_values`, they hold the
    values that actors give.
    """

    def __init__(
        self,
        env: VectorEnvironment,
        actors: Mapping[str, Actor],
        *,
        num_steps: int,
        seed: int,
        rng: np.random.Generator,
        records_logp: bool = False,
        records_states: bool = False,
        records_values: bool = False,
        on_ended: OnEnded | None = None,
    ) -> None:
        """`on_ended` is called when episodes end, before the next ones are acted in."""
        self._env, self._actors, self._num_steps, self._rng = env, dict(actors), num_steps, rng
        self._with_logp = _with_likelihoods(actors) if records_logp else frozenset()
        self._with_value = frozenset(name for name, actor in actors.items() if records_values and actor.gives_value)
        self._env_ids = env.env_ids
        self._memories = {
            name: LaneMemory(actors[name], env.num_envs * group.num_agents)
            for name, group in env.groups.items()
            if actors[name].memory_width
        }
        # An only agent is its environment's clock.
        self._has_clock = sum(group.num_agents for group in env.groups.values()) > 1
        self._builders = {name: self._make_builder(group, actors[name]) for name, group in env.groups.items()}
        self._episodes = _EpisodeTracker(env, on_ended)
        self._states = _state_builder(env, num_steps) if records_states else None
        env.give_states(records_states)
        self._at_once = None if on_ended is not None else self._find_kernels()
        self._see(env.reset(seed=seed))

    def _find_kernels(self) -> NativeRollouts | None:
        """What collects all steps in one call; None where others than policy and environment have a part in them."""
        is_simple = len(self._actors) == 1 and not (self._memories or self._with_value or self._env.rates_episodes)
        if not is_simple or self._states is not None or any(group.masks_actions for group in self._env.groups.values()):
            return None
        (actor,) = self._actors.values()
        return native_rollouts(self._env, actor)

    def _make_builder(self, group: AgentGroup, actor: Actor) -> RolloutBuilder:
        header = LaneHeader(group.name, self._env.env_ids, group.agent_ids, group.observation_space, group.action_space)
        mask_width = actor.head.mask_width if group.masks_actions else None
        with_logp = group.name in self._with_logp
        memory = spaces.Box(-np.inf, np.inf, (actor.memory_width,)) if actor.memory_width else None
        return RolloutBuilder(
            header,
            self._num_steps,
            mask_width=mask_width,
            with_logp=with_logp,
            with_value=group.name in self._with_value,
            memory_space=memory,
            with_clock=self._has_clock,
        )

    def collect(self, policy_version: int | Mapping[str, int], num_steps: int | None = None) -> dict[str, Rollout]:
        """Step every environment `num_steps` times, at most as often as the block has rows; returns a rollout per group.

        `policy_version` is that of the policies which act, or of each group's.
        """
        versions = dict.fromkeys(self._builders, policy_version) if isinstance(policy_version, int) else policy_version
        steps = self._num_steps if num_steps is None else num_steps
        with held(self._actors.values()):
            if self._at_once is not None and steps > 0 and self._at_once.are_possible(self._rng):
                self._step_at_once(self._at_once, steps)
            else:
                for _ in range(steps):
                    self._step()
        return self._build(versions)

    def _step_at_once(self, rollouts: NativeRollouts, num_steps: int) -> None:
        """The same as `num_steps` times `_step`."""
        ((name, builder),) = self._builders.items()
        block = builder.begin_block(num_steps)
        ends = rollouts.collect(block, self._episodes.running(name), self._rng)
        ended, num_agents = builder.finish_block(num_steps, ends.last_obs), self._env.groups[name].num_agents
        self._episodes.add_block(
            name, num_steps, ended[::num_agents] // num_agents, ends
        )  # a world's agents end together
        self._see(self._env.build_observation())

    def _step(self) -> None:
        """Act and step once; a row of every group."""
        if self._states is not None:
            self._states.add(self._state)
        step = self._env.step({name: self._act(name, view) for name, view in self._views.items()})
        over = step.episode_over if self._has_clock else None
        for name, group in step.groups.items():
            self._builders[name].finish_row(
                group.reward, group.terminated, group.truncated, step.failed, group.final, over
            )
        if self._states is not None:
            self._states.finish_row(step.episode_over, step.final_state)
        for name, memory in self._memories.items():
            memory.forget(ended_lanes(step, name))
        self._episodes.add(step)
        self._see(step)

    def cut_off(self, policy_version: int | Mapping[str, int], error: BaseException) -> dict[str, Rollout]:
        """What `collect` had when it raised `error`: the running episodes end behind their last good step, `failed`.

        `restart` begins new ones. Where what came from the environment makes no block, gives nothing, and `error` says so.
        """
        versions = dict.fromkeys(self._builders, policy_version) if isinstance(policy_version, int) else policy_version
        try:
            if len({builder.num_rows for builder in self._builders.values()}) > 1:
                raise EnvError("groups of agents have come to different steps")
            for name, builder in self._builders.items():
                builder.fail_row(self._views[name].obs, self._views[name].action_mask)
            if self._states is not None:
                self._states.fail_row()
            rollouts = self._build(versions)
        except (ConfigError, EnvError) as why:
            error.add_note(f"the steps of this block are lost: {why}")
            return {}
        self._episodes.drop_running()
        for memory in self._memories.values():
            memory.forget(np.ones(len(memory.values), bool))
        return rollouts

    def restart(self) -> None:
        self._see(self._env.reset())

    def _build(self, versions: Mapping[str, int]) -> dict[str, Rollout]:
        rollouts = {}
        for name, builder in self._builders.items():
            view = self._views[name]
            rollouts[name] = builder.build(lanes(view.obs), versions[name], view.action_mask, view.active)
        if self._states is None:
            return rollouts
        block = self._states.build(self._state)
        return {name: block.beside(rollout) for name, rollout in rollouts.items()}

    def _see(self, result: VectorReset | VectorStep) -> None:
        """What the next actions are chosen on."""
        self._views: Mapping[str, GroupObservation] = result.groups
        self._state = result.state

    def _act(self, name: str, view: GroupObservation) -> Any:
        actor, memory, obs = self._actors[name], self._memories.get(name), lanes(view.obs)
        allowed = allowed_actions(self._env, name, view, self._episodes.lengths)
        mask = None if allowed is None else lanes(allowed)
        active, before = view.active.reshape(-1), None
        if memory is None:
            decision = actor.decide(obs, mask, None, self._rng)
        else:
            before, decision = memory.values, memory.decide(obs, mask, self._rng, active)
        self._builders[name].add(
            obs,
            decision.action,
            active,
            view.action_mask,
            logp=decision.logp if name in self._with_logp else None,
            value=decision.value if name in self._with_value else None,
            memory=before,
        )
        taken = actor.head.to_environment(decision.action)
        return agent_rows(taken, view.active.shape)

    def explore(self, exploration: Mapping[str, Exploration]) -> None:
        """Let the groups' actors explore as a policy snapshot says."""
        for name, own in exploration.items():
            self._actors[name].explore(own)

    def take_episodes(self) -> tuple[list[float], list[int]]:
        """Returns (mean over agents) and lengths of episodes that ended since the last call; failed ones left out."""
        ended = self.take_ended()
        return ended.returns, ended.lengths

    def take_ended(self) -> EndedEpisodes:
        """The same, with the returns of each group as well."""
        return self._episodes.take()

    @property
    def num_steps(self) -> int:
        """Steps of each environment since the collector was made."""
        return self._episodes.num_steps

    def state_dict(self) -> dict[str, Any]:
        """What decides the next block: the generator, ids of environments, numbers of episodes, memories and, where it can be
        saved, the environment."""
        return {
            "rng": self._rng.bit_generator.state,
            "env_ids": [str(env_id) for env_id in self._env_ids],
            "builders": {name: builder.get_state() for name, builder in self._builders.items()},
            "episodes": self._episodes.get_state(),
            "memories": {name: memory.values for name, memory in self._memories.items()},
            "environment": self._env.get_state() if isinstance(self._env, StatefulEnvironment) else None,
        }

    def name_envs(self, env_ids: tuple[UUID, ...]) -> None:
        """Give the environments of the next blocks these ids."""
        self._env_ids = env_ids
        for builder in self._builders.values():
            builder.name_envs(env_ids)

    def load_state_dict(self, state: dict[str, Any], *, seed: int) -> bool:
        """Continue from `state_dict`. Where the environment was not saved, new episodes begin from `seed`: gives False."""
        if "rng" not in state:  # of a run that stayed on its device, whose episodes cannot go on here
            self._see(self._env.reset(seed=seed))
            return False
        self._rng.bit_generator.state = state["rng"]
        if self._states is not None:
            self._states.clear()
        if "env_ids" in state:  # older versions kept none
            self.name_envs(tuple(UUID(text) for text in state["env_ids"]))
        saved = state["environment"]
        if saved is not None and isinstance(self._env, StatefulEnvironment):
            for name, builder in self._builders.items():
                builder.set_state(state["builders"][name])
            self._episodes.set_state(state["episodes"])
            for name, memory in self._memories.items():
                memory.values = np.array(state["memories"][name], np.float32)
            self._env.set_state(saved)
            self._see(self._env.build_observation())
            return True
        for name, builder in self._builders.items():
            builder.set_state(_next_episode(state["builders"][name]))
        self._episodes.drop_running()
        for memory in self._memories.values():
            memory.forget(np.ones(len(memory.values), bool))
        self._see(self._env.reset(seed=seed))
        return False


@dataclass(frozen=True, slots=True)
class _Ends:
    """Episodes [E] that ended: the steps that there were by then, when they began, and sums [E, N] by group."""

    num_steps: Array
    began_at: Array
    sums: dict[str, Array]


class _EpisodeTracker:
    """Adds up rewards step by step; episodes that a failure cut are left out."""

    def __init__(self, env: VectorEnvironment, on_ended: OnEnded | None) -> None:
        self._on_ended = on_ended
        self._num_agents = {name: group.num_agents for name, group in env.groups.items()}
        self._sums = {name: np.zeros((env.num_envs, group.num_agents)) for name, group in env.groups.items()}
        self.num_steps = 0
        self._began_at = np.zeros(env.num_envs, np.int64)
        self._ends: list[_Ends] = []
        self._rated_returns: list[float] = []
        self._recorded: list[Recorded] = []
        self._rating = EpisodeRating.of(env)

    def add(self, step: VectorStep) -> None:
        """Count one step of all environments."""
        scores = step.scores
        for name, sums in self._sums.items():
            sums += step.groups[name].reward if scores is None else scores[name]
        self.num_steps += 1
        if step.recorded:
            self._recorded += step.recorded
        if self._rating is not None:
            self._rating.add(step)
        if np.count_nonzero(step.episode_over):
            self._end(step)

    def _end(self, step: VectorStep) -> None:
        over = np.flatnonzero(step.episode_over)
        is_whole = None if step.failed is None else ~step.failed[over]
        whole = over if is_whole is None else over[is_whole]
        if self._on_ended is not None:
            without_failure = np.ones(len(over), bool) if is_whole is None else is_whole
            self._on_ended(over, without_failure, {name: sums[over] for name, sums in self._sums.items()})
        agents = {name: sums[whole] for name, sums in self._sums.items()}
        self._ends.append(_Ends(np.full(len(whole), self.num_steps), self._began_at[whole], agents))
        if self._rating is not None:
            self._rated_returns += self._rated(self._rating, over, whole)
        for sums in self._sums.values():
            sums[over] = 0.0
        self._began_at[over] = self.num_steps
        if not any(np.count_nonzero(group.active) == group.active.size for group in step.groups.values()):
            # An environment that nobody acts in after an end spends the next step on its reset.
            acts = reduce(np.logical_or, [group.active[over].any(1) for group in step.groups.values()])
            self._began_at[over] += ~acts

    @staticmethod
    def _rated(rating: EpisodeRating, over: Array, whole: Array) -> list[float]:
        for b in np.setdiff1d(over, whole).tolist():
            rating.drop(b)
        return [rating.take(b) for b in whole.tolist()]

    def running(self, group: str) -> RunningEpisodes:
        """The episodes of the only group, as a call that takes many steps continues them."""
        return RunningEpisodes(self._sums[group], self._began_at, self.num_steps)

    def add_block(self, group: str, num_steps: int, over: Array, ends: BlockEnds) -> None:
        """Count the steps that such a call took, in which the episodes `over` (numbers `step * B + b`) ended."""
        if len(over):
            rows = over // len(self._began_at)
            returns = ends.returns.reshape(-1, self._num_agents[group])[over]
            self._ends.append(_Ends(self.num_steps + 1 + rows, ends.began_at.reshape(-1)[over], {group: returns}))
        self.num_steps += num_steps

    def lengths(self) -> Array:
        """[B] steps that the running episodes have taken."""
        return self.num_steps - self._began_at

    def drop_running(self) -> None:
        """A failure has cut all running episodes."""
        self._began_at[:] = self.num_steps
        for sums in self._sums.values():
            sums[:] = 0.0
        if self._rating is not None:
            for b in range(len(self._began_at)):
                self._rating.drop(b)

    def take(self) -> EndedEpisodes:
        """Episodes that ended since the last call."""
        ends, rated, recorded = self._ends, self._rated_returns, self._recorded
        self._ends, self._rated_returns, self._recorded = [], [], []
        agents = {name: [each.sums[name] for each in ends] for name in self._num_agents}
        if not ends:
            return EndedEpisodes(group_returns={name: [] for name in agents}, agent_returns=agents, recorded=recorded)
        sums = {name: np.concatenate(own).sum(1) for name, own in agents.items()}
        total = reduce(np.add, sums.values()) / sum(self._num_agents.values())
        began_at = np.concatenate([each.began_at for each in ends])
        num_steps = np.concatenate([each.num_steps for each in ends])
        return EndedEpisodes(
            returns=total.tolist() if self._rating is None else rated,
            lengths=(num_steps - began_at).tolist(),
            group_returns={name: (own / self._num_agents[name]).tolist() for name, own in sums.items()},
            agent_returns=agents,
            began_at=began_at.tolist(),
            num_steps=num_steps.tolist(),
            recorded=recorded,
        )

    def get_state(self) -> dict[str, Array]:
        """The running episodes; those that ended must have been taken."""
        sums = {f"sum/{name}": own.copy() for name, own in self._sums.items()}
        return {"length": self.lengths(), **sums, **({} if self._rating is None else self._rating.get_state())}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `get_state`."""
        self._began_at[:] = self.num_steps - state["length"]
        for name, sums in self._sums.items():
            sums[:] = state[f"sum/{name}"]
        if self._rating is not None:
            self._rating.set_state(state)


def allowed_actions(
    env: VectorEnvironment, name: str, view: GroupObservation, lengths: Callable[[], Array]
) -> Array | None:
    """[B, N, A] the mask to act under; raises where an agent that acts is allowed nothing.

    Agents that do not act may be allowed nothing: they get everything, so that a policy never sees such a row. `lengths()` [B]
    are the steps that the episodes have taken.
    """
    group, mask = env.groups[name], view.action_mask
    if mask is None:
        return None
    stuck = allows_nothing(mask, mask_parts(group.action_space))
    if not np.count_nonzero(stuck):
        return mask
    for b, n in np.argwhere(stuck & view.active).tolist():
        who = f"agent {group.agent_ids[n]!r} of environment {env.env_ids[b]} (environment {b})"
        raise ActionMaskError(f"{who} at step {int(lengths()[b])} of its episode")
    return mask | stuck[..., None]


def _state_builder(env: VectorEnvironment, num_steps: int) -> StateBuilder:
    if env.state_space is None:
        raise ConfigError("states are to be recorded, and the environment offers none")
    return StateBuilder(env.state_space, env.num_envs, num_steps)


def ended_lanes(step: VectorStep, group: str) -> Array:
    """[L] lanes whose next row begins an episode."""
    own = step.groups[group]
    ended = own.terminated | own.truncated
    return (ended if step.failed is None else ended | step.failed[:, None]).reshape(-1)


def _with_likelihoods(actors: Mapping[str, Actor]) -> frozenset[str]:
    return frozenset(name for name, actor in actors.items() if actor.head.has_log_prob)


def _next_episode(numbers: Mapping[str, Array]) -> dict[str, Array]:
    """The numbers with which lanes go on when their present episode is given up."""
    none = np.zeros_like(numbers["first_step"])
    if "env_step" not in numbers:
        return {"first_episode": numbers["first_episode"] + (numbers["first_step"] > 0), "first_step": none}
    episode = numbers["env_episode"] + (numbers["env_step"] > 0)
    of_lanes = np.repeat(episode, len(none) // len(episode))
    return {
        "first_episode": np.maximum(numbers["first_episode"], of_lanes),
        "first_step": none,
        "env_episode": episode,
        "env_step": np.zeros_like(episode),
    }


def agent_rows(tree: Tree, shape: tuple[int, ...]) -> Any:
    """`[L, …]` as `[B, N, …]`, of which `shape` is `(B, N)`."""
    if isinstance(tree, np.ndarray):
        return tree.reshape(*shape, *tree.shape[1:])
    return map_tree(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)


def lanes(tree: Tree) -> Any:
    """`[B, N, …]` as `[L, …]`."""
    if isinstance(tree, np.ndarray):
        return tree.reshape(-1, *tree.shape[2:])
    return map_tree(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)
