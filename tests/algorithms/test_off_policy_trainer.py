"""The off-policy trainer: how many gradient steps environment steps are worth, and what a checkpoint of it continues."""

import numpy as np
import pytest
from gymnasium import spaces
from test_off_policy import ALGORITHMS, hashes, make_learner

from relayrl.bench.replay_sampling import pendulum_rollout
from relayrl.training.trainers.off_policy_trainer import OffPolicyTrainer

PENDULUM_ACTIONS = spaces.Box(-2.0, 2.0, (1,), np.float32)


def make_trainer(algo: str = "ddpg", num_envs: int = 2, **settings) -> OffPolicyTrainer:
    _, params_class = ALGORITHMS[algo]
    params = params_class(**{"batch_size": 8, "buffer_size": 100, "learning_starts": 10} | settings)
    learner = make_learner(algo, params=params, box=PENDULUM_ACTIONS)
    return OffPolicyTrainer(learner, params, num_envs, 1000, np.random.default_rng(0))


def play(trainer: OffPolicyTrainer, num_steps: int, num_envs: int = 2) -> int:
    """Gradient steps that follow `num_steps` steps of each environment."""
    before = trainer._algorithm.num_updates
    trainer.receive({"agent": pendulum_rollout(num_steps, num_envs)})
    trainer.advance()
    return trainer._algorithm.num_updates - before


def test_nothing_is_learned_before_learning_starts():
    trainer = make_trainer(update_interval=1, train_iters=1, learning_starts=20)
    assert play(trainer, 9) == 0
    assert trainer.is_warming_up
    assert len(trainer.replay) == 18
    # The block in which the threshold is crossed counts.
    assert play(trainer, 1) == 2
    assert not trainer.is_warming_up


@pytest.mark.parametrize(("interval", "iterations", "expected"), [(1, 1, 12), (4, 1, 3), (4, 5, 15), (12, 2, 2)])
def test_updates_follow_environment_steps(interval, iterations, expected):
    trainer = make_trainer(update_interval=interval, train_iters=iterations)
    assert play(trainer, 6) == expected


def test_steps_short_of_an_update_are_kept_for_the_next():
    trainer = make_trainer(update_interval=10, train_iters=1, learning_starts=1)
    assert [play(trainer, 3) for _ in range(5)] == [0, 1, 0, 1, 1]


def test_every_update_is_a_new_version():
    trainer = make_trainer(update_interval=4, train_iters=3)
    play(trainer, 6)
    assert trainer.policy_version == 3


def test_metrics_are_means_over_the_gradient_steps():
    trainer = make_trainer("td3", update_interval=1, train_iters=1)
    trainer.receive({"agent": pendulum_rollout(6, 2)})
    metrics = trainer.advance()
    assert metrics["replay/size"] == 12
    assert 0.0 < metrics["value/loss"] < 10.0
    assert "policy/loss" in metrics


def test_errors_become_priorities():
    trainer = make_trainer(priority_exponent=1.0, update_interval=1, train_iters=20)
    play(trainer, 6)
    shares = trainer.replay._priorities.draw(1000, np.random.default_rng(0))[1]
    assert len(set(np.round(shares, 12).tolist())) > 5


@pytest.mark.parametrize("settings", [{}, {"priority_exponent": 0.6}], ids=["uniform", "prioritised"])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_state_round_trip_continues_bit_for_bit(algo, settings):
    first, second = (make_trainer(algo, update_interval=2, train_iters=1, **settings) for _ in range(2))
    play(first, 7)
    second.load_state_dict(first.state_dict())
    for trainer in (first, second):
        play(trainer, 5)
    assert hashes(first._algorithm) == hashes(second._algorithm)
    assert (first.num_env_steps, first.policy_version) == (second.num_env_steps, second.policy_version)


def test_the_correction_of_prioritised_sampling_is_annealed_over_the_run():
    trainer = make_trainer(priority_exponent=0.6, priority_correction=0.4, update_interval=100)
    drawn_with = []
    draw = trainer.replay.sample
    trainer.replay.sample = lambda *args, **kwargs: drawn_with.append(kwargs["correction"]) or draw(*args, **kwargs)
    for _ in range(12):
        trainer.receive({"agent": pendulum_rollout(50, 2)})
        metrics = trainer.advance()
        assert metrics["replay/priority_correction"] == pytest.approx(drawn_with[-1])
    # Of 1,000 steps, one tenth more before each update; over from then on.
    expected = [0.4 + 0.6 * min(1.0, n / 10) for n in range(1, 13)]
    assert drawn_with[:: len(drawn_with) // 12] == pytest.approx(expected)
