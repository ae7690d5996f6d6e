"""Central critics and the global state of their environment: who sees it, what it is worth, and what truncation makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl import RelayRLTrainer, TrainerArgs
from relayrl.algorithms.critics.critic_sight import CriticSight, StateOffer, critic_sight
from relayrl.algorithms.on_policy_params import PPOParams
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_registry import make_vector
from relayrl.errors import ConfigError
from relayrl.extend import assemble
from relayrl.models.network_settings import CriticInput, NetworkSettings
from relayrl.runtime.collector import Collector

HIDDEN = "relayrl.testing.toy_environments:HiddenSign"
GAMMA = 0.5
VALUE = 1.0 / (1.0 - GAMMA)


def learner(algo: str, *, env: str = HIDDEN, workers: int = 0, **network: Any) -> tuple[Any, Collector]:
    """What learns, and a collector that acts for it."""
    params = {"gamma": GAMMA, "vf_lr": 0.02, "train_vf_iters": 20}
    if algo == "mareinforce":
        params["with_vf_baseline"] = True
    settings = RunSettings.model_validate(
        {
            "env": env,
            "algo": algo,
            "params": params,
            "environment": {"num_envs": 8, "workers": workers},
            "network": {"hidden_sizes": [16], **network},
        }
    )
    envs = make_vector(env, settings.environment)
    parts = assemble(settings, envs)
    collector = Collector(
        envs,
        parts.actors,
        num_steps=8,
        seed=1,
        rng=np.random.default_rng(0),
        records_states=parts.trainer.needs_states,
    )
    return parts, collector


def value_error(parts: Any, collector: Collector, num_updates: int = 40) -> float:
    """Root mean square error of the values after learning, over a block of the environments."""
    for _ in range(num_updates):
        parts.trainer.receive(collector.collect(0))
        parts.trainer.advance()
    rollouts = collector.collect(0)
    (inputs,) = parts.trainer.central.inputs(rollouts).values()
    (policy,) = parts.policies.values()
    with torch.no_grad():
        value = policy.value(torch.from_numpy(inputs.rows.laid_out())).numpy()
    (rollout,) = rollouts.values()
    value = value.reshape(rollout.reward.shape)
    return float(np.sqrt(np.mean((value - VALUE * rollout.reward) ** 2)))


@pytest.mark.parametrize("algo", ["mappo", "mareinforce"])
def test_a_critic_that_sees_the_state_knows_what_no_observation_tells(algo: str) -> None:
    """The value is ± 2, by bootstrapping a truncation from the final state: from the next episode's it would be ± 1."""
    assert value_error(*learner(algo)) < 0.1
    assert value_error(*learner(algo, critic_input="joint_observations")) > 1.5


def test_workers_deliver_the_same_states() -> None:
    here, there = (learner("mappo", workers=workers)[1].collect(0) for workers in (0, 2))
    for name, rollout in here.items():
        np.testing.assert_array_equal(rollout.state, there[name].state)
        np.testing.assert_array_equal(rollout.successors.state, there[name].successors.state)
        np.testing.assert_array_equal(rollout.successors.state[: 7 * 16, 0], rollout.reward[:7].reshape(-1))


def test_states_are_recorded_only_where_a_critic_sees_them() -> None:
    _, collector = learner("mappo", critic_input="joint_observations")
    assert all(rollout.state is None for rollout in collector.collect(0).values())


@pytest.mark.parametrize("choice", ["state", "both"])
def test_a_state_that_repeats_observations_is_seen_when_asked_for(choice: str) -> None:
    parts, collector = learner("mappo", env="native:simple_spread", critic_input=choice)
    rollouts = collector.collect(0)
    (rollout,), (inputs,) = rollouts.values(), parts.trainer.central.inputs(rollouts).values()
    joint = rollout.obs.reshape(64, 1, 54).repeat(3, axis=1).reshape(192, 54)
    expected = [joint] if choice == "state" else [joint, joint]
    np.testing.assert_array_equal(inputs.rows.laid_out()[:, :-3], np.concatenate(expected, -1))


def test_learning_from_joint_observations_and_from_their_repetition_are_the_same() -> None:
    hashes = []
    for choice in ("auto", "state"):
        parts, collector = learner("mappo", env="native:simple_spread", critic_input=choice)
        for _ in range(4):
            parts.trainer.receive(collector.collect(0))
            parts.trainer.advance()
        hashes.append(torch.cat([p.detach().reshape(-1) for p in parts.policies["agent"].parameters()]))
    assert torch.equal(*hashes)


@pytest.mark.parametrize(
    ("choice", "offer", "expected"),
    [
        ("auto", None, (True, False)),
        ("auto", "more", (False, True)),
        ("auto", "same", (True, False)),
        ("joint_observations", "more", (True, False)),
        ("state", "same", (False, True)),
        ("both", "more", (True, True)),
    ],
)
def test_what_critics_see(choice: str, offer: str | None, expected: tuple[bool, bool]) -> None:
    space = spaces.Box(-1.0, 1.0, (1,))
    given = None if offer is None else StateOffer(space, repeats_observations=offer == "same")
    assert critic_sight(CriticInput(choice), given) == CriticSight(*expected)


@pytest.mark.parametrize("choice", ["state", "both"])
def test_a_state_that_nobody_offers_is_refused(choice: str) -> None:
    with pytest.raises(ConfigError, match="use joint_observations"):
        learner("mappo", env="relayrl.testing.toy_environments:MatrixGame", critic_input=choice)


def test_a_resumed_collector_goes_on_with_the_states() -> None:
    blocks = []
    _, collector = learner("mappo", env="native:simple_spread", critic_input="state")
    collector.collect(0)
    saved = collector.state_dict()
    blocks.append(collector.collect(0)["agent"])
    _, fresh = learner("mappo", env="native:simple_spread", critic_input="state")
    fresh.collect(0)
    assert fresh.load_state_dict(saved, seed=5)
    blocks.append(fresh.collect(0)["agent"])
    np.testing.assert_array_equal(blocks[0].state, blocks[1].state)
    np.testing.assert_array_equal(blocks[0].successors.state, blocks[1].successors.state)


def test_the_facade_learns_from_trajectories_with_states(tmp_path: Path) -> None:
    """A critic that sees the state explains the returns; without states, trajectories are refused where it must see one."""
    _, collector = learner("mappo")
    args = TrainerArgs(
        "envs/hidden",
        tmp_path,
        observation_space=spaces.Box(0.0, 0.0, (1,)),
        action_space=spaces.Box(-1.0, 1.0, (1,)),
        state_space=spaces.Box(-1.0, 1.0, (1,)),
        network=NetworkSettings(hidden_sizes=(16,)),
    )
    trainer = RelayRLTrainer.mappo(args, PPOParams(gamma=GAMMA, vf_lr=0.02, train_vf_iters=20, traj_per_epoch=64))
    for agent in ("agent_0", "agent_1"):
        trainer.register_agent(agent, "agent")
    for _ in range(30):
        for trajectory in collector.collect(0)["agent"].trajectories():
            trainer.receive_trajectory(trajectory)
        assert trainer.train_model()
        explained = trainer.log_epoch()["value/explained_variance"]
    assert explained > 0.95
    trajectory = next(iter(collector.collect(0)["agent"].trajectories()))
    with pytest.raises(ConfigError, match="has no state"):
        trainer.receive_trajectory(replace(trajectory, state=None, final_state=None))
