"""DDPG, TD3 and SAC in runs that stay on a GPU: captured, by kernels, and the same again after a resume.

RELAYRL_TEST_DEVICE=cpu:0 python -m pytest tests/gpu/test_resident_replay_runs.py      the same loop in torch on the CPU
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import relayrl
from relayrl.engines.device.resident_run import build_resident
from relayrl.engines.settings.run_settings import build_run_settings

SETTINGS: dict[str, Any] = {
    "environment.num_envs": 64,
    "network.hidden_sizes": (64, 64),
    "network.activation": "relu",
    "evaluation.episodes": 2,
    "evaluation.interval": None,
    "params.update_interval": 64,
    "params.train_iters": 4,
    "params.learning_starts": 128,
    "params.buffer_size": 2_048,
    "params.batch_size": 256,
}
CONTINUOUS = {"environment.options.continuous_actions": True}


@pytest.mark.parametrize(
    ("env", "algo", "more"),
    [
        ("native:Pendulum", "ddpg", {"tf32": True}),
        ("native:Pendulum", "td3", {"tf32": True, "params.train_iters": 3}),  # the policy's turn moves
        ("native:Pendulum", "sac", {"tf32": True}),
        ("native:Pendulum", "sac", {"network.activation": "tanh", "network.hidden_sizes": (48,)}),
        ("native:CartPole", "sac", {}),
        ("native:simple_spread", "matd3", CONTINUOUS),
    ],
)
def test_a_run_is_captured_and_resumed_bit_for_bit(
    device: str, tmp_path: Path, env: str, algo: str, more: dict[str, Any]
) -> None:
    settings = {**SETTINGS, "device": device, **more}

    def train(name: str, num_iterations: int, **more: Any) -> relayrl.Run:
        steps, folder = num_iterations * 64, tmp_path / name
        return relayrl.train(env, algo=algo, steps=steps, run_dir=folder, progress=False, settings=settings, **more)

    whole = train("whole", 24)
    train("parts", 13)
    assert train("parts", 24, resume=True).result.parameter_hash == whole.result.parameter_hash
    log = (tmp_path / "whole" / "run.log").read_text()
    assert f"stay on {device}" in log
    assert "cannot be captured" not in log
    assert "torch evaluates" not in log


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_gradients_by_kernels_are_those_of_torch(
    device: str, algo: str, tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device != "cuda":
        pytest.skip("kernels are for CUDA devices")
    found = []
    for is_fused in (True, False):
        if not is_fused:
            monkeypatch.setattr("relayrl.engines.device.replay_learner.fuse_replay_networks", lambda algorithm: None)
        given = {**SETTINGS, "device": device, "tf32": tf32, "params.batch_size": 4_096}
        given["network.activation"] = "tanh"  # relu has another slope where rounding takes an output over zero
        parts: Any = build_resident(build_run_settings("native:Pendulum", None, {"algo": algo}, list(given.items())))
        trainer = parts.trainer
        for _ in range(8):
            trainer.receive(parts.collector.fill(1))
        (learner,) = trainer.algorithm.groups.values()
        trainer.algorithm.num_updates = 1  # the policy's turn is next
        trainer.algorithm.begin(trainer.replay.sample_on_device(4_096, gamma=0.9))
        found.append((learner.critic_optimizer.gradient.clone(), learner.actor_optimizer.gradient.clone()))
    for got, want in zip(*found, strict=True):
        error = float((got - want).norm() / want.norm())
        assert error < (1e-2 if tf32 else 1e-4), error
