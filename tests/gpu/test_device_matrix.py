"""Every algorithm on a GPU: it decides and learns what it does on the CPU, up to rounding, and goes on where it was saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from device_cases import (
    CASES,
    Case,
    learn,
    relearn,
    require_close,
    require_equal,
    require_exported,
    require_on,
    require_same_decisions,
    restored,
    saved,
)

from relayrl.accelerator.live_actor import live_actor
from relayrl.errors import ConfigError
from relayrl.models.network_settings import NetworkSettings

TOLERANCE = 2e-3
"""Of what two updates leave: Adam divides small gradients by small numbers, so that rounding is magnified."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_runs_equal_those_of_the_cpu_and_resume_bit_for_bit(case: Case, device: str, tmp_path: Path) -> None:
    here, there = case.parts("cpu"), case.parts(device)
    require_on(there, device)
    require_equal(saved(here, tmp_path), saved(there, tmp_path))  # the same first parameters
    want, first = learn(here), learn(there)
    require_same_decisions(want, first, TOLERANCE)
    after_one = saved(there, tmp_path)
    require_close(saved(here, tmp_path), after_one, TOLERANCE)

    second = learn(there)
    after_two = saved(there, tmp_path)
    on_device, on_cpu = restored(case, device, after_one), restored(case, "cpu", after_one)
    for again in (on_device, on_cpu):
        again.signals.load_state_dict(after_two["signals"])
        relearn(again, second)
    require_equal(after_two, saved(on_device, tmp_path))
    require_close(after_two, saved(on_cpu, tmp_path), TOLERANCE)
    require_exported(case, there, second, tmp_path, TOLERANCE)
    for parts in (here, there, on_device, on_cpu):
        parts.close()


def test_two_runs_with_one_seed_are_equal(device: str, tmp_path: Path) -> None:
    states = []
    for _ in range(2):
        parts = CASES["ppo-images-lstm"].parts(device)
        for _ in range(3):
            learn(parts)
        states.append(saved(parts, tmp_path))
        parts.close()
    require_equal(*states)


def test_a_whole_run_is_resumed_and_evaluated(device: str, tmp_path: Path) -> None:
    import relayrl

    settings = {"network.hidden_sizes": (16, 16), "trainer.time_horizon": 16, "evaluation.episodes": 2}
    settings["params.lr_schedule"] = "constant"  # it must not depend on how long the run was meant to be
    more = {"num_envs": 4, "seed": 1, "progress": False, "device": device, "settings": settings}
    whole = relayrl.train("CartPole-v1", steps=256, run_dir=tmp_path / "whole", **more)
    relayrl.train("CartPole-v1", steps=128, run_dir=tmp_path / "parts", **more)
    parts = relayrl.train("CartPole-v1", steps=256, run_dir=tmp_path / "parts", resume=True, **more)
    assert parts.result.parameter_hash == whole.result.parameter_hash
    assert parts.settings.device == device
    assert parts.evaluate(episodes=2).mean_return == whole.evaluate(episodes=2).mean_return
    assert whole.policy.act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_run_moves_to_the_cpu(device: str, threaded: bool, tmp_path: Path) -> None:
    import relayrl

    settings = {
        "params.learning_starts": 32,
        "params.batch_size": 16,
        "evaluation.episodes": 0,
        "trainer.threaded": threaded,
    }
    more = {"algo": "sac", "num_envs": 4, "progress": False, "settings": settings, "run_dir": tmp_path}
    relayrl.train("Pendulum-v1", steps=64, device=device, **more)
    run = relayrl.train("Pendulum-v1", steps=96, device="cpu", resume=True, **more)
    assert run.result.num_env_steps == 96
    assert run.settings.device == "cpu"


def test_several_learners_are_for_the_cpu(device: str) -> None:
    with pytest.raises(ConfigError, match="2 learners share their steps on the CPU"):
        CASES["ppo-masks"].parts(device, learners=2)


def test_a_trainer_learns_from_trajectories_and_agents_act(device: str, tmp_path: Path) -> None:
    import relayrl

    acted = CASES["ppo-without-kl-limit"].parts("cpu")
    (rollout,) = learn(acted).values()
    acted.close()
    args = {"obs_dim": 4, "act_dim": 2, "network": NetworkSettings(hidden_sizes=(16,))}
    params = relayrl.PPOParams(traj_per_epoch=4, train_pi_iters=2, train_vf_iters=2)
    states = []
    for name in ("cpu", device):
        own = relayrl.TrainerArgs("cartpole", tmp_path / f"on-{name}", **args, device=name)
        trainer = relayrl.RelayRLTrainer.ppo(own, params)
        for trajectory in rollout.trajectories()[:4]:
            trainer.receive_trajectory(trajectory)
        assert trainer.train_model()
        (policy,) = trainer.policies.values()
        states.append({key: tensor.cpu() for key, tensor in policy.state_dict().items()})
        actions = live_actor(policy).act(np.zeros((3, 4), np.float32))
        assert actions.tolist() == trainer.acquire_model("onnx").actor().act(np.zeros((3, 4), np.float32)).tolist()
    require_close(*states, TOLERANCE)


def test_demonstrations_are_cloned(device: str, tmp_path: Path) -> None:
    import relayrl

    common = {"num_envs": 4, "progress": False}
    record = f"arrow:{tmp_path / 'record'}"
    settings = {"network.hidden_sizes": (16, 16), "evaluation.episodes": 0, "trainer.time_horizon": 16}
    relayrl.train("CartPole-v1", steps=256, run_dir=tmp_path / "ppo", settings={**settings, "record": record}, **common)
    cloned = {
        name: relayrl.train(
            "CartPole-v1",
            algo="bc",
            steps=512,
            run_dir=tmp_path / f"bc-on-{name}",
            device=name,
            settings={**settings, "learn_from": record, "params.batch_size": 32},
            **common,
        )
        for name in ("cpu", device)
    }
    losses = [run.history["policy/loss"][-1] for run in cloned.values()]
    np.testing.assert_allclose(*losses, rtol=TOLERANCE)
    guided = {
        **settings,
        "behavioral_cloning.demo_path": record,
        "behavioral_cloning.strength": 0.5,
        "reward_signals.gail.options": {"demo_path": record, "use_vail": True, "use_actions": True},
        "reward_signals.gail.strength": 0.1,
    }
    run = relayrl.train("CartPole-v1", steps=128, run_dir=tmp_path / "guided", device=device, settings=guided, **common)
    assert np.isfinite(run.history["signals/gail/loss"][-1])
    assert np.isfinite(run.history["cloning/loss"][-1])
