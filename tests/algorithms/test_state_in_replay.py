"""Critics that learn from replay and the global state: what replay keeps of it, and what Q-networks make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from relayrl import RelayRLTrainer, TrainerArgs
from relayrl.algorithms.params import MADDPGParams
from relayrl.algorithms.updates.replay_actor_critic import actions_of, features_of
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_registry import make_vector
from relayrl.errors import CheckpointError
from relayrl.extend import assemble
from relayrl.models.network_settings import NetworkSettings
from relayrl.runtime.collector import Collector
from relayrl.training.replay.joint_replay import JointReplay

HIDDEN = "relayrl.testing.toy_environments:HiddenSign"
GAMMA = 0.5
VALUE = 1.0 / (1.0 - GAMMA)
CENTRAL = ["maddpg", "matd3", "masac"]


def learner(algo: str, *, episode_length: int = 1, params: dict[str, Any] | None = None, **network: Any) -> Any:
    """What learns, and a collector that acts for it."""
    quick = {
        "gamma": GAMMA,
        "critic_lr": 0.01,
        "tau": 0.1,
        "batch_size": 64,
        "learning_starts": 64,
        "buffer_size": 2000,
    }
    if algo == "masac":  # without a price on entropy, values are those of the rewards alone
        quick |= {"learns_temperature": False, "init_temperature": 1e-6}
    settings = RunSettings.model_validate(
        {
            "env": HIDDEN,
            "algo": algo,
            "params": quick | (params or {}),
            "environment": {"num_envs": 4, "options": {"episode_length": episode_length}},
            "network": {"hidden_sizes": [16], **network},
        }
    )
    envs = make_vector(HIDDEN, settings.environment)
    parts = assemble(settings, envs)
    rng, states = np.random.default_rng(0), parts.trainer.needs_states
    return parts, Collector(envs, parts.actors, num_steps=16, seed=1, rng=rng, records_states=states)


def value_error(parts: Any, collector: Collector) -> float:
    """Root mean square error of the Q-values after learning."""
    trainer = parts.trainer
    for _ in range(10):
        trainer.receive(collector.collect(0))
        trainer.advance()
    for _ in range(60):
        trainer.count_without_collecting(trainer.rollout_steps(1, 1))
        trainer.advance()
    algorithm = trainer._algorithm
    probe = trainer.replay.sample(200, np.random.default_rng(0), gamma=GAMMA)
    batch = algorithm.batch(probe)
    own = batch["agent"]
    inputs = algorithm.view.inputs("agent", features_of(batch), actions_of(batch), own.state)
    value = algorithm.groups["agent"].q(inputs)[0].detach().reshape(own.reward.shape)
    return float((value - VALUE * own.reward).square().mean().sqrt())


@pytest.mark.parametrize("algo", CENTRAL)
def test_q_networks_that_see_the_state_know_what_no_observation_tells(algo: str) -> None:
    """The value is ± 2, by bootstrapping a truncation from the final state: from the next episode's it would be ± 1."""
    assert value_error(*learner(algo)) < 0.3
    assert value_error(*learner(algo, critic_input="joint_observations")) > 1.5


def test_normalised_states_say_the_same() -> None:
    assert value_error(*learner("maddpg", normalize_observations=True)) < 0.3


def test_replay_keeps_the_state_before_and_after_each_transition() -> None:
    """A sign stays the same within an episode and is its reward, so a state of the next episode would show."""
    parts, collector = learner("maddpg", episode_length=3)
    for _ in range(8):
        parts.trainer.receive(collector.collect(0))
    for steps in (1, 2, 5):
        drawn = parts.trainer.replay.sample(300, np.random.default_rng(0), gamma=1.0, num_step_returns=steps)
        sign = np.sign(drawn.groups["agent"].reward[:, :1])
        np.testing.assert_array_equal(drawn.state, sign)
        np.testing.assert_array_equal(drawn.next_state, sign)
    assert {-1.0, 1.0} == set(sign[:, 0].tolist())


def test_saved_replay_holds_states() -> None:
    parts, collector = learner("maddpg", episode_length=3)
    parts.trainer.receive(collector.collect(0))
    saved = parts.trainer.state_dict()
    other, _ = learner("maddpg", episode_length=3)
    other.trainer.load_state_dict(saved)
    one, two = (p.trainer.replay.sample(50, np.random.default_rng(0), gamma=1.0) for p in (parts, other))
    np.testing.assert_array_equal(one.state, two.state)
    np.testing.assert_array_equal(one.next_state, two.next_state)
    without = {**saved["replay"], "arrays": {k: a for k, a in saved["replay"]["arrays"].items() if "state" not in k}}
    space = parts.policies["agent"].observation_space
    empty = JointReplay(2000, 4, state_space=space)
    with pytest.raises(CheckpointError, match="without global states"):
        empty.set_state(without, {"agent": (space, space)})


def test_an_agent_may_join_a_team_whose_critics_see_the_state(tmp_path: Path) -> None:
    _, collector = learner("maddpg", episode_length=3)
    args = TrainerArgs(
        "envs/hidden",
        tmp_path,
        observation_space=spaces.Box(0.0, 0.0, (1,)),
        action_space=spaces.Box(-1.0, 1.0, (1,)),
        state_space=spaces.Box(-1.0, 1.0, (1,)),
        network=NetworkSettings(hidden_sizes=(16,)),
    )
    params = MADDPGParams(batch_size=8, learning_starts=1, update_interval=4, train_iters=1, traj_per_epoch=4)
    trainer = RelayRLTrainer.maddpg(args, params)
    for agent in ("agent_0", "agent_1"):
        trainer.register_agent(agent)
        for trajectory in collector.collect(0)["agent"].trajectories():
            if trajectory.agent_id in trainer.agent_ids:
                trainer.receive_trajectory(trajectory)
        assert trainer.train_model()
    drawn = trainer._learned().trainer.replay.sample(50, np.random.default_rng(0), gamma=1.0)
    acted = drawn.groups["agent_0"].valid[:, 0]
    assert acted.mean() > 0.8
    np.testing.assert_array_equal(drawn.state[acted], np.sign(drawn.groups["agent_0"].reward[acted, :1]))
