"""Whole runs that stay on a device, from outside; torch on the CPU stands in for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

import relayrl
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.heads.discrete_heads import CategoricalHead

SMALL: dict[str, Any] = {
    "device": "cpu:0",
    "environment.num_envs": 4,
    "trainer.time_horizon": 16,
    "trainer.summary_freq": 128,
    "evaluation.episodes": 2,
    "evaluation.interval": None,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.num_minibatches": 2,
    "params.lr_schedule": "constant",
}

REPLAY: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if not key.startswith("params.")},
    "params.learning_starts": 64,
    "params.update_interval": 8,
    "params.batch_size": 16,
    "params.buffer_size": 256,
    "params.train_iters": 1,
}


def _train(path: Path, env: str, algo: str, steps: int, **more: Any) -> relayrl.Run:
    settings = {**(SMALL if algo.endswith("ppo") else REPLAY), **more.pop("settings", {})}
    return relayrl.train(env, algo=algo, steps=steps, run_dir=path, progress=False, settings=settings, **more)


@pytest.mark.parametrize(
    ("env", "algo"),
    [
        ("native:CartPole", "ppo"),
        ("native:simple_speaker_listener", "mappo"),
        ("native:Pendulum", "ppo"),
        ("native:Pendulum", "td3"),
        ("native:CartPole", "sac"),
        ("native:simple_spread", "masac"),
    ],
)
def test_a_run_that_is_resumed_equals_one_that_was_not(tmp_path: Path, env: str, algo: str) -> None:
    whole = _train(tmp_path / "whole", env, algo, 640)
    _train(tmp_path / "parts", env, algo, 320)
    resumed = _train(tmp_path / "parts", env, algo, 640, resume=True)
    assert resumed.result.num_env_steps == whole.result.num_env_steps == 640
    assert resumed.result.parameter_hash == whole.result.parameter_hash
    assert "stay on cpu:0" in (tmp_path / "whole" / "run.log").read_text()


def test_the_log_says_where_the_run_stays(tmp_path: Path) -> None:
    _train(tmp_path / "run", "native:CartPole", "ppo", 128)
    assert "stay on cpu:0" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.parametrize(
    ("env", "algo", "settings", "reason"),
    [
        ("native:CartPole", "ppo", {"environment.options.device": "cpu"}, "environment.options.device is another"),
        ("native:CartPole", "impala", {}, "impala learns on the device from rollouts of the host"),
        ("native:dungeon_escape", "ippo", {}, "agents die or appear"),
        ("CartPole-v1", "ppo", {}, "no native one"),
    ],
)
def test_the_log_says_why_an_environment_stays_on_the_host(
    tmp_path: Path, env: str, algo: str, settings: dict[str, Any], reason: str
) -> None:
    own = {key: value for key, value in SMALL.items() if algo != "impala" or not key.startswith("params.")}
    relayrl.train(env, algo=algo, steps=64, run_dir=tmp_path / "run", progress=False, settings={**own, **settings})
    assert reason in (tmp_path / "run" / "run.log").read_text()


def test_a_batched_environment_of_a_users_stays_on_the_device(tmp_path: Path) -> None:
    env, there = "relayrl.bench.gpu.synthetic_environments:regulator", {"environment.options.device": "cpu:0"}
    whole = _train(tmp_path / "whole", env, "ppo", 320, settings=there)
    _train(tmp_path / "parts", env, "ppo", 192, settings=there)
    resumed = _train(tmp_path / "parts", env, "ppo", 320, resume=True, settings=there)
    assert "stay on cpu:0" in (tmp_path / "whole" / "run.log").read_text()
    assert resumed.result.parameter_hash == whole.result.parameter_hash


def test_another_environment_that_takes_a_device_is_stepped_as_ever(tmp_path: Path) -> None:
    env = f"{__name__}:environment_that_takes_a_device"
    _train(tmp_path / "run", env, "ppo", 64, settings={"environment.options.device": "cpu:0"})
    assert "makes no BatchedEnvironment there" in (tmp_path / "run" / "run.log").read_text()


def environment_that_takes_a_device(device: str) -> gymnasium.Env[Any, Any]:
    del device
    return gymnasium.make("CartPole-v1")


def test_a_run_of_another_last_block_counts_exactly(tmp_path: Path) -> None:
    run = _train(tmp_path / "run", "native:CartPole", "ppo", 200)
    assert run.result.num_env_steps == 200


def test_schedules_and_callbacks_move_hyperparameters(tmp_path: Path) -> None:
    seen = []

    class Watch(relayrl.Callback):
        def on_update(self, run: relayrl.LiveRun) -> None:
            run.params["entropy_coef"] = 0.01 * len(seen)
            seen.append(run.params["entropy_coef"])

    fixed = _train(tmp_path / "fixed", "native:CartPole", "ppo", 256)
    moved = _train(tmp_path / "moved", "native:CartPole", "ppo", 256, callbacks=[Watch()])
    assert len(seen) == 4
    assert fixed.result.parameter_hash != moved.result.parameter_hash


def test_callbacks_that_see_rollouts_are_refused(tmp_path: Path) -> None:
    class Watch(relayrl.Callback):
        def on_rollout(self, run: relayrl.LiveRun) -> None:
            raise AssertionError("there is no rollout on the host")

    with pytest.raises(ConfigError, match=r"environment\.options\.device=cpu"):
        _train(tmp_path / "run", "native:CartPole", "ppo", 128, callbacks=[Watch()])


def test_statistics_hold_every_episode_and_metric(tmp_path: Path) -> None:
    run = _train(tmp_path / "run", "native:CartPole", "ppo", 1280)
    rows = (tmp_path / "run" / "progress.csv").read_text().splitlines()
    names, last = rows[0].split(","), dict(zip(rows[0].split(","), rows[-1].split(","), strict=True))
    assert {"episode/return_mean", "policy/loss", "policy/kl", "value/loss", "value/explained_variance"} <= set(names)
    assert float(last["policy/gradient_steps"]) == 4
    # With one point a step, the steps of ended episodes are at most those of the run, and not far from them.
    assert 0.5 * 1280 < float(last["episode/count"]) * run.result.train_return < 2 * 1280


@pytest.mark.parametrize(("env", "algo"), [("native:simple_spread", "mappo"), ("native:Pendulum", "td3")])
@pytest.mark.parametrize(("first", "then"), [("cpu:0", "cpu"), ("cpu", "cpu:0")])
def test_runs_move_between_the_host_and_a_device(tmp_path: Path, env: str, algo: str, first: str, then: str) -> None:
    begun_hash = _train(tmp_path / "run", env, algo, 320, settings={"device": first}).result.parameter_hash
    moved = _train(tmp_path / "run", env, algo, 640, settings={"device": then}, resume=True)
    assert moved.result.num_env_steps == 640
    assert moved.result.parameter_hash != begun_hash
    log = (tmp_path / "run" / "run.log").read_text()
    assert ("it begins empty" in log) == (algo == "td3")


def test_an_unknown_behaviour_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="speaker_0"):
        _train(
            tmp_path / "run",
            "native:simple_speaker_listener",
            "ippo",
            64,
            settings={"behaviors.speaker.params.pi_lr": 1e-3},
        )


class GreedyHead(CategoricalHead):
    """Draws in a way of its own, on the host alone."""

    def sample(self, parameters: Any, rng: Any) -> Any:
        return self.mode(parameters)


def test_a_head_with_draws_of_its_own_is_obeyed(tmp_path: Path) -> None:
    _train(tmp_path / "run", "native:CartPole", "ppo", 128, settings={"network.head": GreedyHead})
    assert "are drawn on the host" in (tmp_path / "run" / "run.log").read_text()
