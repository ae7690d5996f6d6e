"""The environment contract: three ways to write an environment, one way to run it.

A user writes whichever fits the simulator:

- `ScalarEnvironment`      one agent: `reset` and `step`, as in Gymnasium (any `gymnasium.Env` is one already);
- `MultiAgentEnvironment`  several agents step together, dicts keyed by agent, as in PettingZoo's parallel API; agents may
                           die, appear, differ in their spaces, mask actions and take turns;
- `VectorEnvironment`      many environments in one call, arrays `[B, N, …]` per group of agents with equal spaces.

RelayRL runs only the third; `relayrl.envs.vector.vectorise` makes one from the other two, in this process or in workers.

Rules of a `VectorEnvironment` (the contract suite in `relayrl.testing` checks them):

1. `init_num_envs(B)` once, then `reset()`, then `step()`. `env_ids[b]` names environment `b` for good; order is fixed.
2. Arrays belong to the environment and may be overwritten by its next call; copy what you keep.
3. Auto-reset happens in the same step: when environment `b` ends, `episode_over[b]` is set, the flags and rewards returned
   are those of the ended episode, `obs` is already the next episode's first observation, and `final` holds the ended lanes'
   last observations. An environment that needs a step for its reset has no active lane in this row, and its first observation
   is in the next one; that step counts for no episode.
4. `active[b, n]` is True where agent `n` acts on `obs[b, n]`; where it is False, `obs` means nothing and the next action is
   ignored. A lane ends at most once an episode, with `terminated` or `truncated` and its row in `final`. The lane of an only
   agent may also lose a life: it ends, is active again in the same row, and `episode_over` is not set. Learning takes that for
   an end; episodes that are counted go on.
5. Environment `b`'s randomness depends on `(seed, b)` alone, not on the number of environments.
6. An error is an error of the whole operation, raised as `EnvironmentFailedError`; with restarts asked for, `failed[b]` is
   set instead: that row is void, truncated, `final` has the last good observation, and a new episode has begun.
7. Where there is a global state, `state` goes with `obs`: where an episode ended it is the next one's, and `final_state` holds
   the one that the episode ended in (the last good one, where the environment failed, or could not say it after its end).
   `give_states(False)` says that nobody asks for it.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, Tree, allocate, leaves, space_leaves, tree_leaves
from relayrl.envs.rendering import NOT_DRAWN, Drawing, RenderMode
from relayrl.errors import ConfigError, EnvError

SINGLE_AGENT = "agent"
"""Agent id and group name of environments with one agent."""

LIFE_LOST = "life_lost"
"""In the `info` of a step that ends: it ended a life, not the episode. The environment's next `reset` goes on with it."""


class EnvironmentKind(Enum):
    """Which of the three contracts an environment satisfies."""

    SCALAR = "scalar"
    MULTI_AGENT = "multi_agent"
    VECTOR = "vector"


class ScalarReset(NamedTuple):
    """What `reset` gives; unpacks like Gymnasium's `(obs, info)`."""

    observation: Any
    info: Mapping[str, Any]


class ScalarStep(NamedTuple):
    """What `step` gives; unpacks like Gymnasium's 5-tuple."""

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]


class MultiAgentReset(NamedTuple):
    """Observations of the agents that act first."""

    observations: Mapping[str, Any]
    infos: Mapping[str, Mapping[str, Any]]


class MultiAgentStep(NamedTuple):
    """Per agent: `observations` of those that are alive or just ended; missing rewards are 0, missing flags False."""

    observations: Mapping[str, Any]
    rewards: Mapping[str, float]
    terminated: Mapping[str, bool]
    truncated: Mapping[str, bool]
    infos: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """Agents of one environment with equal spaces: axis `N` of their arrays, in the order of `agent_ids`."""

    name: str
    agent_ids: tuple[str, ...]
    observation_space: Space
    action_space: Space
    masks_actions: bool = False

    def __post_init__(self) -> None:
        for what, space in (("observation", self.observation_space), ("action", self.action_space)):
            require_supported_space(space, f"the {what} space of {self.name!r}")

    @property
    def num_agents(self) -> int:
        return len(self.agent_ids)


_LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def require_supported_space(space: Any, what: str) -> None:
    """Raise `ConfigError` where RelayRL has no columns for `space`."""
    found = space_leaves(space) if isinstance(space, spaces.Space) else [("", space)]
    for path, leaf in found:
        if not isinstance(leaf, _LEAF_SPACES):
            where = f" at {path!r}" if path else ""
            drop = f", or drop it: --set environment.ignore_keys=[{path}]" if path else ""
            raise ConfigError(
                f"{what} is {leaf!r:.100}{where}, which is not supported; use Box, Discrete, MultiDiscrete, MultiBinary, or "
                f"Dict or Tuple of them{drop}"
            )


@dataclass(slots=True)
class FinalObservations:
    """What lanes that ended in this step saw last: lane `(env[k], agent[k])` saw `obs[k]`; sorted, each lane once."""

    env: Array
    agent: Array
    obs: Tree
    action_mask: Array | None = None  # [K, A] bool: what it would have been allowed to do next; None where nobody knows


@dataclass(slots=True)
class GroupObservation:
    """What one group of agents sees: enough to act."""

    obs: Tree  # [B, N, …]
    active: Array  # [B, N] bool
    action_mask: Array | None = (
        None  # [B, N, A] bool, True = allowed; MultiDiscrete: the components' masks side by side
    )


@dataclass(slots=True)
class GroupStep(GroupObservation):
    """What one group of agents gets from a step; rewards and flags are of the action just taken."""

    reward: Array = field(kw_only=True)  # [B, N] float32
    terminated: Array = field(kw_only=True)  # [B, N] bool
    truncated: Array = field(kw_only=True)  # [B, N] bool
    final: FinalObservations | None = field(kw_only=True, default=None)


@dataclass(slots=True)
class VectorReset:
    """First observations, by group name."""

    groups: Mapping[str, GroupObservation]
    state: Tree | None = None  # [B, …] the global state, where the environment offers one


class Combination(IntEnum):
    """How the numbers that a simulator records under one name become one, as Unity's `StatAggregationMethod`."""

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


class Recorded(NamedTuple):
    """A number that a simulator records besides rewards; the row of statistics has it as `environment/NAME`."""

    name: str
    number: float
    combination: Combination = Combination.AVERAGE


@dataclass(slots=True)
class VectorStep:
    """One step of all environments, by group name."""

    groups: Mapping[str, GroupStep]
    episode_over: Array  # [B] bool
    failed: Array | None = None  # [B] bool, None when nothing failed
    state: Tree | None = None
    infos: Sequence[Mapping[str, Any]] = ()  # one each, where the environments run in this process
    final_state: Tree | None = None  # [K, …] where there is a state: one row for each True of `episode_over`, in order
    scores: Mapping[str, Array] | None = (
        None  # [B, N] of each group: what counts as return, where `reward` is for learning
    )
    recorded: Sequence[Recorded] = ()

    def counted(self, group: str) -> Array:
        """[B, N] what the step adds to the returns that are reported."""
        return self.groups[group].reward if self.scores is None else self.scores[group]


class Relabelled(NamedTuple):
    """What transitions are worth under other goals."""

    reward: Array  # [M] float32
    terminated: Array | None  # [M] bool; None where the environment's ends do not depend on goals


class Environment(ABC):
    """What the three kinds share."""

    kind: EnvironmentKind

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """Dtype of the observations; for nested spaces and mixed groups, of the first leaf."""
        return self._first_spaces()[0]

    @property
    def action_dtype(self) -> np.dtype[Any]:
        """Dtype of the actions; for nested spaces and mixed groups, of the first leaf."""
        return self._first_spaces()[1]

    @abstractmethod
    def _first_spaces(self) -> tuple[np.dtype[Any], np.dtype[Any]]: ...

    @abstractmethod
    def build_observation(self) -> Any:
        """The current observation, as the last `reset` or `step` gave it."""

    @property
    def rates_episodes(self) -> bool:
        """Whether `performance_return` is a rule of its own, by which runs then report and score episodes."""
        return False

    def close(self) -> None:  # noqa: B027 - most environments hold nothing to close
        """Release what the environment holds; called once."""


def _leaf_dtypes(observation_space: Space, action_space: Space) -> tuple[np.dtype[Any], np.dtype[Any]]:
    from relayrl.data.trees import leaf_dtype, space_leaves

    first = [leaf_dtype(next(iter(space_leaves(space)))[1]) for space in (observation_space, action_space)]
    return first[0], first[1]


class ScalarEnvironment(Environment):
    """One agent in one environment. Subclass it, or use any `gymnasium.Env`: the methods are the same."""

    kind = EnvironmentKind.SCALAR
    observation_space: Space
    action_space: Space

    @abstractmethod
    def reset(self, *, seed: int | None = None) -> ScalarReset:
        """Begin an episode; with a seed, one that depends on the seed alone."""

    @abstractmethod
    def step(self, action: Any) -> ScalarStep:
        """Advance one step."""

    @property
    def rates_episodes(self) -> bool:
        return type(self).performance_return is not ScalarEnvironment.performance_return

    def performance_return(self, rewards: Sequence[float]) -> float:
        """The performance signal of an episode from its rewards; undiscounted return unless overridden."""
        return float(sum(rewards))

    def run_environment(self, act: Callable[[Any], Any], *, max_steps: int = 100_000, seed: int | None = None) -> float:
        """Play one episode with `act(observation) -> action`; gives `performance_return` of its rewards."""
        observation, _ = self.reset(seed=seed)
        rewards = []
        for _ in range(max_steps):
            observation, reward, terminated, truncated, _ = self.step(act(observation))
            rewards.append(float(reward))
            if terminated or truncated:
                break
        return self.performance_return(rewards)

    def _first_spaces(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        return _leaf_dtypes(self.observation_space, self.action_space)


class MultiAgentEnvironment(Environment):
    """Several agents that step together; actions and results are dicts keyed by agent id."""

    kind = EnvironmentKind.MULTI_AGENT
    possible_agents: Sequence[str]
    observation_spaces: Mapping[str, Space]
    action_spaces: Mapping[str, Space]

    @property
    @abstractmethod
    def agents(self) -> Sequence[str]:
        """The agents alive now; empty when the episode is over."""

    @abstractmethod
    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        """Begin an episode."""

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        """Advance one step with the actions of `acting_agents()`."""

    def acting_agents(self) -> Sequence[str]:
        """The agents that act next; in turn-based games one of `agents`."""
        return self.agents

    def action_masks(self) -> Mapping[str, Array]:
        """Allowed actions (bool, one entry per action) of the acting agents; empty when nothing is masked.

        After a step, also those of agents that ended in it, where they are known: what a truncated agent could have done next
        decides the value of what it saw last. Where they are missing, everything counts as allowed.
        """
        return {}

    @property
    def masks_actions(self) -> bool:
        """Whether `action_masks` is ever other than empty."""
        return False

    @property
    def rates_episodes(self) -> bool:
        return type(self).performance_return is not MultiAgentEnvironment.performance_return

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        """The performance signal of an episode from the agents' rewards; their mean undiscounted return unless overridden."""
        return mean_of_sums(rewards)

    def run_environment(
        self,
        act: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        max_steps: int = 100_000,
        seed: int | None = None,
    ) -> float:
        """Play one episode with `act(observations) -> actions` of the acting agents; gives `performance_return`."""
        observations = self.reset(seed=seed).observations
        rewards: dict[str, list[float]] = {agent: [] for agent in self.possible_agents}
        for _ in range(max_steps):
            step = self.step(act({agent: observations[agent] for agent in self.acting_agents()}))
            observations = step.observations
            for agent, own in rewards.items():
                own.append(float(step.rewards.get(agent, 0.0)))
            if not self.agents:
                break
        return self.performance_return(rewards)

    def state(self) -> Tree | None:
        """The global state for central critics, where there is one."""
        return None

    @property
    def state_space(self) -> Space | None:
        return None

    @property
    def state_repeats_observations(self) -> bool:
        """Whether the state is known to be the agents' observations side by side, and nothing else."""
        return False

    def _first_spaces(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        agent = self.possible_agents[0]
        return _leaf_dtypes(self.observation_spaces[agent], self.action_spaces[agent])


class VectorEnvironment(Environment):
    """`B` environments that step in one call. The rules are in the module's docstring."""

    kind = EnvironmentKind.VECTOR
    groups: Mapping[str, AgentGroup]
    env_ids: tuple[uuid.UUID, ...] = ()
    state_space: Space | None = None
    state_repeats_observations: bool = False
    """Whether the state is known to be the agents' observations side by side: who sees those learns nothing new from it."""
    device: str = "cpu"
    """Where the arrays live: `"cpu"` for NumPy arrays, anything else for torch tensors on that device."""
    independent_streams: bool = True
    """Whether rule 5 holds; False where the simulator draws for all environments from one generator."""
    drawing: Drawing = NOT_DRAWN
    """In which modes the environments can be drawn."""

    @property
    def num_envs(self) -> int:
        """B."""
        return len(self.env_ids)

    @abstractmethod
    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        """Create `num_envs` environments and return their ids. Called once, before `reset`."""

    @abstractmethod
    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        """Begin new episodes in all environments, or in the named ones; the result covers all of them."""

    @abstractmethod
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        """Advance every environment by one step; `actions[group]` is a tree with leading axes `[B, N]`.

        Environments that `make_env` gives also take actions by environment: `actions[env_id][agent_id]`, or `actions[env_id]`
        where there is one agent.
        """

    has_goals: bool = False
    """Whether `relabel` says what other goals would have paid."""

    def relabel(self, achieved: Array, desired: Array) -> Relabelled:
        """What transitions that `achieved` [M, …] something would have paid, had the goals been `desired` [M, …]."""
        raise ConfigError(
            "the environment has no goals: its observations are no Dict of observation, achieved_goal and "
            "desired_goal, or it has no compute_reward"
        )

    def give_states(self, wanted: bool) -> None:
        """Whether results must hold the global state; where nobody asks for it, it need not be computed. At first they do.

        Called before a `reset`. Where it is not wanted, `state` and `final_state` may be None.
        """

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """What parameters are in the episodes that begin from now on, arrays [B] float64; running ones keep what they have.

        Called before the first `reset`, and whenever values change.
        """
        raise ConfigError(
            f"{type(self).__name__} steps all environments in one call and has no set_parameters(values): it offers no "
            f"environment parameters ({', '.join(values)})"
        )

    def begin_lessons(self, lessons: Sequence[int]) -> None:
        """Which lesson of each parameter the episodes that begin from now on are in; of environments with parameters."""
        if lessons:
            raise ConfigError(f"{type(self).__name__} was made without environment parameters and has no lessons")

    @property
    def rates_episodes(self) -> bool:
        return type(self).performance_return is not VectorEnvironment.performance_return

    def performance_return(self, rewards: Mapping[str, Sequence[float]]) -> float:
        """The performance signal of one environment's episode from the agents' rewards, as of `MultiAgentEnvironment`."""
        return mean_of_sums(rewards)

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        """`[H, W, 3]` uint8 pictures of some environments as they are now, counted from 0.

        In the mode `human`, shows them in a window and gives none; nothing is left to do where `step()` has shown them.
        """
        raise EnvError(f"{type(self).__name__} draws no pictures in the mode {mode.value}")

    def final_frames(self) -> Mapping[int, Array]:
        """Last pictures of episodes that ended in the last step, by environment; empty where only `frames` can be drawn."""
        return {}

    def run_environment(
        self,
        act: Callable[[Mapping[str, GroupObservation]], Mapping[str, Any]],
        *,
        max_steps: int = 100_000,
        seed: int | None = None,
    ) -> dict[uuid.UUID, float]:
        """Play one episode in every environment with `act(groups) -> actions`; gives each one's `performance_return`."""
        groups: Mapping[str, GroupObservation] = self.reset(seed=seed).groups
        agents = {agent: (name, n) for name, own in self.groups.items() for n, agent in enumerate(own.agent_ids)}
        rewards: list[dict[str, list[float]]] = [{agent: [] for agent in agents} for _ in self.env_ids]
        running = set(range(self.num_envs))
        for _ in range(max_steps):
            step = self.step(act(groups))
            groups = step.groups
            for b in running:
                for agent, (name, n) in agents.items():
                    rewards[b][agent].append(float(step.groups[name].reward[b, n]))
            running = {b for b in running if not step.episode_over[b]}
            if not running:
                break
        return {env_id: self.performance_return(own) for env_id, own in zip(self.env_ids, rewards, strict=True)}

    def _first_spaces(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        group = next(iter(self.groups.values()))
        return _leaf_dtypes(group.observation_space, group.action_space)


class StatefulEnvironment(ABC):
    """Mixin of environments whose state can be read and set, so that checkpoints hold it. Data only, never a pickle."""

    @abstractmethod
    def get_state(self) -> dict[str, Array]:
        """Everything that decides the future, random generators included, as named arrays."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Array]) -> None:
        """Continue exactly from a state that `get_state` gave."""


def mean_of_sums(rewards: Mapping[str, Sequence[float]]) -> float:
    """The agents' mean undiscounted return."""
    return float(np.mean([sum(own) for own in rewards.values()]))


def actions_by_group(env: VectorEnvironment, actions: Mapping[uuid.UUID, Any]) -> dict[str, Any]:
    """Actions `[B, N, …]` of each group, from those of each environment: by agent, or plain where there is one agent.

    Agents that do not act need none; every environment needs an entry.
    """
    if set(actions) != set(env.env_ids):
        raise EnvError(f"actions name {len(actions)} environments, not the {env.num_envs} of env_ids; name each one")
    views = env.build_observation().groups
    is_alone = sum(group.num_agents for group in env.groups.values()) == 1
    joined: dict[str, Any] = {}
    for name, group in env.groups.items():
        rows: Tree = allocate(group.action_space, (env.num_envs, group.num_agents))
        for b, env_id in enumerate(env.env_ids):
            own = {group.agent_ids[0]: actions[env_id]} if is_alone else actions[env_id]
            for n, agent in enumerate(group.agent_ids):
                if agent in own:
                    for row, value in zip(
                        leaves(rows), tree_leaves(group.action_space, own[agent], "action"), strict=True
                    ):
                        row[1][b, n] = value
                elif views[name].active[b, n]:
                    raise EnvError(f"agent {agent!r} of environment {env_id} acts next and has no action")
        joined[name] = rows
    return joined


class PartSeed(int):
    """The seed of a vector environment whose environments are a part of more: they are numbered from `first_env` on."""

    first_env: int

    def __new__(cls, seed: int, first_env: int) -> PartSeed:
        made = super().__new__(cls, seed)
        made.first_env = first_env
        return made


def first_env_of(seed: int) -> int:
    """The number of the first environment that is reset with a seed."""
    return seed.first_env if isinstance(seed, PartSeed) else 0


def env_seeds(seed: int | None, num_envs: int) -> list[int | None]:
    """The seed of each environment: depends on `(seed, b)` alone, so it does not change when others are added."""
    if seed is None:
        return [None] * num_envs
    first = first_env_of(seed)
    return [
        int(np.random.SeedSequence([int(seed), first + b]).generate_state(1, np.uint32)[0]) & 0x7FFF_FFFF
        for b in range(num_envs)
    ]


def new_env_ids(num_envs: int) -> tuple[uuid.UUID, ...]:
    """Fresh ids, one per environment."""
    return tuple(uuid.uuid4() for _ in range(num_envs))
