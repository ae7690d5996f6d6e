"""Agents that die, appear and wait for their turn: every multi-agent algorithm learns, with values of the size of returns."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.params import OffPolicyParams
from relayrl.algorithms.registry import algorithms
from relayrl.algorithms.updates.replay_actor_critic import actions_of, features_of
from relayrl.compiled import loader
from relayrl.data.columns import copied_rollout
from relayrl.data.stacking import joint_envs, stack_jointly
from relayrl.data.trees import Array
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.adapters.pettingzoo_adapter import wrap
from relayrl.envs.environment_contract import MultiAgentEnvironment, MultiAgentReset, MultiAgentStep
from relayrl.envs.environment_registry import make_vector
from relayrl.errors import ConfigError
from relayrl.extend import Assembly, assemble
from relayrl.runtime.collector import Collector
from relayrl.training.replay.joint_replay import JointReplay, _GroupRecords

MULTI_AGENT = sorted(
    f"{form}{name}" for name in algorithms() for form in ("i", "ma") if f"{form}{name}" in algorithms()
)


class ChangingTeam(MultiAgentEnvironment):
    """Two agents see a sign and are paid 1 − |action − 0.8 sign| for each of their actions; six steps are an episode.

    `dies`: agent_1 terminates in a random step. `appears`: it is not there before one. `waits`: the agents take turns. What a
    dead agent sees last says 5 where all else says 1, so that a critic that is asked about it must guess.
    """

    NUM_STEPS = 6

    def __init__(self, *, change: str) -> None:
        self.possible_agents = ("agent_0", "agent_1")
        self.observation_spaces = {agent: spaces.Box(-5.0, 5.0, (2,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Box(-1.0, 1.0, (1,), np.float32) for agent in self.possible_agents}
        self._change, self._random = change, np.random.default_rng()
        self._num_steps, self._alive = 0, ()

    @property
    def agents(self) -> Sequence[str]:
        return self._alive

    def acting_agents(self) -> Sequence[str]:
        return (self._alive[self._num_steps % 2],) if self._change == "waits" and self._alive else self._alive

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._num_steps, self._when = 0, int(self._random.integers(1, 3))
        self._alive = self.possible_agents[:1] if self._change == "appears" else self.possible_agents
        self._observe()
        return MultiAgentReset(self._observations, {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        rewards = {agent: 1.0 - abs(float(actions[agent][0]) - 0.8 * self._signs[agent]) for agent in actions}
        self._num_steps += 1
        stepped, is_over = self._alive, self._num_steps == self.NUM_STEPS
        dies = self._change == "dies" and self._num_steps == self._when
        if is_over:
            self._alive = ()
        elif dies:
            self._alive = ("agent_0",)
        elif self._num_steps == self._when:
            self._alive = self.possible_agents
        self._observe(*stepped, dead="agent_1" if dies else None)
        truncated = dict.fromkeys(self.possible_agents if is_over else (), True)
        return MultiAgentStep(self._observations, rewards, {"agent_1": dies}, truncated, {})

    def _observe(self, *stepped: str, dead: str | None = None) -> None:
        self._signs = {agent: float(self._random.choice([-1.0, 1.0])) for agent in self.possible_agents}
        self._observations = {
            agent: np.array([self._signs[agent], 5.0 if agent == dead else 1.0], np.float32)
            for agent in dict.fromkeys([*stepped, *self._alive])
        }

    def build_observation(self) -> Mapping[str, Array]:
        return self._observations


class Mayfly(MultiAgentEnvironment):
    """`fly_0` dies in the first step, `fly_1` in the second, which pays it 1: it is worth γ, then 1, whatever both do.

    `fly_0` sees 1, and 3 when it dies; `fly_1` sees nothing. So a critic of `fly_1` tells its two steps apart by whether
    `fly_0` is there, and along that line 3 is far beyond both.
    """

    def __init__(self) -> None:
        self.possible_agents = ("fly_0", "fly_1")
        self.observation_spaces = {agent: spaces.Box(0.0, 3.0, (1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Box(-1.0, 1.0, (1,), np.float32) for agent in self.possible_agents}
        self._alive: tuple[str, ...] = ()

    @property
    def agents(self) -> Sequence[str]:
        return self._alive

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._alive = self.possible_agents
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        dying, self._alive = self._alive[0], self._alive[1:]
        return MultiAgentStep(self.build_observation(), {dying: float(dying == "fly_1")}, {dying: True}, {}, {})

    def build_observation(self) -> Mapping[str, Array]:
        seen = {"fly_0": 1.0 if len(self._alive) == 2 else 3.0, "fly_1": 0.0}
        shown = self.possible_agents if self._alive else self.possible_agents[1:]
        return {agent: np.array([seen[agent]], np.float32) for agent in shown}


class MayflyOfPettingZoo(ParallelEnv):
    """The same by PettingZoo's contract."""

    metadata: ClassVar = {"name": "mayfly"}

    def __init__(self) -> None:
        self._own = Mayfly()
        self.possible_agents, self.agents = list(self._own.possible_agents), []

    def observation_space(self, agent: str) -> spaces.Space:
        return self._own.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self._own.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        observations = self._own.reset(seed=seed).observations
        self.agents = list(self._own.agents)
        return dict(observations), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        acted, result = self.agents, self._own.step(actions)
        self.agents = list(self._own.agents)
        flags = {agent: result.terminated.get(agent, False) for agent in acted}
        rewards = {agent: result.rewards.get(agent, 0.0) for agent in acted}
        observations = {agent: result.observations[agent] for agent in acted}
        return observations, rewards, flags, dict.fromkeys(acted, False), {agent: {} for agent in acted}


def mayfly_of_pettingzoo() -> MultiAgentEnvironment:
    return wrap(MayflyOfPettingZoo())


ON_POLICY = {
    "params.pi_lr": 3e-3,
    "params.vf_lr": 3e-3,
    "params.train_vf_iters": 10,
    "params.train_pi_iters": 10,
    "params.with_vf_baseline": True,
}
OFF_POLICY = {
    "params.learning_starts": 200,
    "params.batch_size": 64,
    "params.update_interval": 8,
    "params.train_iters": 4,
    "params.actor_lr": 1e-3,
    "params.critic_lr": 3e-3,
    "params.tau": 0.05,
    "params.noise_scale": 0.3,
    "params.exploration_noise": 0.3,
    "params.init_temperature": 0.02,
    "params.learns_temperature": False,
}
GAMMA = 0.9
LARGEST_VALUE = 1.0 / (1.0 - GAMMA)


def make_team(algo: str, env: str, options: dict[str, Any], **flags: Any) -> tuple[Assembly, Collector]:
    fields = algorithms()[algo].params.model_fields
    given = {key: v for key, v in (ON_POLICY | OFF_POLICY).items() if key.removeprefix("params.") in fields}
    own = {"algo": algo, "environment.num_envs": 8, "environment.options": options, "params.gamma": GAMMA}
    own |= {
        "network.hidden_sizes": (32, 32),
        "network.activation": "relu",
        "trainer.time_horizon": 16,
        "trainer.max_steps": 100_000,
    }
    settings = build_run_settings(env, None, own | given | flags, [])
    envs = make_vector(settings.env, settings.environment)
    parts = assemble(settings, envs)
    rng = np.random.default_rng(0)
    return parts, Collector(envs, parts.actors, num_steps=parts.rollout_steps, seed=0, rng=rng)


def learn(parts: Assembly, collector: Collector, num_env_steps: int) -> float:
    """Gives the largest mean value that was ever reported."""
    largest = 0.0
    while parts.trainer.num_env_steps < num_env_steps:
        parts.trainer.receive(collector.collect(parts.trainer.policy_version))
        metrics = parts.trainer.advance()
        largest = max([largest, *(abs(number) for name, number in metrics.items() if name.endswith("value/mean"))])
    return largest


def mean_error(parts: Assembly) -> float:
    """How far greedy actions are from what pays best; standing still is 0.8 away."""
    (policy,) = parts.policies.values()
    signs = np.array([-1.0, 1.0], np.float32)
    obs = np.stack([signs, np.ones(2, np.float32)], -1)
    return float(np.mean(np.abs(live_actor(policy).act_greedily(obs, None)[:, 0] - 0.8 * signs)))


def lesson(algo: str, change: str) -> tuple[float, float]:
    """Error of what was learned, and the largest value on the way."""
    options = {"params.pi_lr": 0.02} if algo.endswith(("reinforce", "impala")) else {}  # one pass over each rollout
    parts, collector = make_team(algo, TEAM, {"change": change}, **options)
    largest = learn(parts, collector, 1_600)
    return mean_error(parts), largest


TEAM, FLIES = "test_changing_teams:ChangingTeam", "test_changing_teams:Mayfly"
OFF_POLICY_NAMES = [name for name in MULTI_AGENT if issubclass(algorithms()[name].params, OffPolicyParams)]
CENTRAL = ["maddpg", "masac", "matd3"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["dies", "appears"])
@pytest.mark.parametrize("algo", MULTI_AGENT)
def test_it_learns_while_others_die_and_appear(algo, change):
    error, largest = lesson(algo, change)
    assert error < 0.4
    assert largest < 1.5 * LARGEST_VALUE


@pytest.mark.slow
@pytest.mark.parametrize("algo", [name for name in MULTI_AGENT if name not in OFF_POLICY_NAMES])
def test_it_learns_while_others_wait(algo):
    error, largest = lesson(algo, "waits")
    assert error < 0.4
    assert largest < 1.5 * LARGEST_VALUE


@pytest.mark.parametrize("algo", OFF_POLICY_NAMES)
def test_turns_are_refused_where_replay_does_not_hold_them(algo):
    with pytest.raises(ConfigError, match="take turns"):
        lesson(algo, "waits")


@pytest.mark.slow
@pytest.mark.parametrize("algo", CENTRAL)
def test_with_the_dead_among_what_follows_it_is_missed(algo, monkeypatch):
    monkeypatch.setattr(_GroupRecords, "goes_on", lambda self, rows: np.zeros(len(rows), bool))
    error, largest = lesson(algo, "dies")
    assert error > 0.7
    assert largest > 1_000


QUIET = {"params.learns_temperature": False, "params.init_temperature": 1e-6}
VARIANTS = {
    "shared": {},
    "separate": {"environment.sharing": "separate"},
    "several steps": {"params.num_step_returns": 3},
    "priorities": {"params.priority_exponent": 0.6},
}


def values_of_the_survivor(algo: str, env: str = FLIES, **flags: Any) -> tuple[float, float]:
    """What the critic of `fly_1` gives for its first and its second step, after learning."""
    parts, collector = make_team(algo, env, {}, **({"params.critic_lr": 1e-3} | flags))
    learn(parts, collector, 1_600)
    algorithm = parts.trainer._algorithm
    drawn = parts.trainer.replay.sample(200, np.random.default_rng(0), gamma=GAMMA)
    batch = algorithm.batch(drawn)
    name = list(batch)[-1]
    inputs = algorithm.view.inputs(name, features_of(batch), actions_of(batch))
    value = algorithm.groups[name].q(inputs)[0].reshape(batch[name].valid.shape)[:, -1].detach()
    is_first = next(iter(batch.values())).valid[:, 0]
    return float(value[is_first].mean()), float(value[~is_first].mean())


@pytest.mark.parametrize(
    ("algo", "variant"), [(algo, "shared") for algo in CENTRAL] + [("maddpg", name) for name in list(VARIANTS)[1:]]
)
def test_q_of_a_survivor_is_exact(algo, variant):
    flags = VARIANTS[variant] | (QUIET if algo == "masac" else {})
    assert values_of_the_survivor(algo, **flags) == pytest.approx((0.9, 1.0), abs=0.05)


def test_q_of_a_survivor_is_exact_without_kernels(monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, loader.OFF)
    assert values_of_the_survivor("maddpg") == pytest.approx((0.9, 1.0), abs=0.05)


def test_pettingzoos_survivor_is_worth_the_same():
    given = values_of_the_survivor("maddpg", "test_changing_teams:mayfly_of_pettingzoo")
    assert given == values_of_the_survivor("maddpg")


@pytest.mark.parametrize("time_horizon", [1, 16])
@pytest.mark.parametrize("algo", ["mappo", "mareinforce"])
def test_v_of_a_survivor_is_exact(algo, time_horizon):
    """With one row a block, everything that is learned from what follows is learned at a block's end."""
    flags = {"trainer.time_horizon": time_horizon, "environment.num_envs": 64 // time_horizon, "params.lam": 0.0}
    parts, collector = make_team(algo, FLIES, {}, **flags)
    learn(parts, collector, 10_000)
    values: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(2):
        rollouts = collector.collect(0)
        inputs = parts.trainer.central.inputs(rollouts)["fly"].rows.laid_out()
        with torch.no_grad():
            value = parts.policies["fly"].value(torch.from_numpy(inputs)).numpy().reshape(-1, 2)[:, 1]
        for number, is_first in zip(value, rollouts["fly"].valid.reshape(-1, 2)[:, 0], strict=True):
            values[bool(is_first)].append(number)
    assert (np.mean(values[True]), np.mean(values[False])) == pytest.approx((0.9, 1.0), abs=0.05)


def test_records_tell_replay_the_same():
    _, collector = make_team("maddpg", TEAM, {"change": "dies"})
    blocks = [{name: copied_rollout(rollout) for name, rollout in collector.collect(0).items()} for _ in range(6)]
    direct, recorded = JointReplay(48, 8), JointReplay(48, 1)
    for block in blocks:
        direct.add(block)
    for members in joint_envs(trajectory for block in blocks for trajectory in block["agent"].trajectories()):
        recorded.add(stack_jointly(members, {"agent": blocks[0]["agent"].header}))
    rows = []
    for replay in (direct, recorded):
        drawn = replay.sample(4_000, np.random.default_rng(0), gamma=GAMMA).groups["agent"]
        seen = np.concatenate([drawn.obs[..., 0] * drawn.valid, drawn.valid, drawn.next_valid], 1)
        rows.append(set(map(tuple, seen.tolist())))
    assert rows[0] == rows[1]
    assert {row[2:] for row in rows[0]} == {(1, 1, 1, 1), (1, 1, 1, 0), (1, 0, 1, 0)}
