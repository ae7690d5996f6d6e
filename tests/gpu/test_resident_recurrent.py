"""Policies with a memory in runs that stay on a GPU: captured, by kernels, and the same again after a resume.

RELAYRL_TEST_DEVICE=cpu:0 python -m pytest tests/gpu/test_resident_recurrent.py      the same loop in torch on the CPU
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import relayrl

SETTINGS: dict[str, Any] = {
    "environment.num_envs": 64,
    "trainer.time_horizon": 32,
    "network.hidden_sizes": (32,),
    "evaluation.episodes": 2,
    "evaluation.interval": None,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.num_minibatches": 2,
    "params.lr_schedule": "constant",
}


@pytest.mark.parametrize(
    ("env", "algo", "kind", "sequence_length", "tf32"),
    [
        ("native:CartPole", "ppo", "lstm", 8, False),
        ("native:Pendulum", "ppo", "gru", 32, False),
        ("native:Pendulum", "ppo", "gru", 8, True),
        ("native:simple_spread", "ippo", "lstm", 32, False),
        ("native:simple_spread", "mappo", "gru", 8, False),
        ("native:simple_spread", "mappo", "gru", 32, True),
    ],
)
def test_a_run_is_captured_and_resumed_bit_for_bit(
    device: str, tmp_path: Path, env: str, algo: str, kind: str, sequence_length: int, tf32: bool
) -> None:
    memory = {"kind": kind, "size": 24, "sequence_length": sequence_length}
    settings = {**SETTINGS, "device": device, "network.memory": memory, "tf32": tf32}

    def train(name: str, num_iterations: int, **more: Any) -> relayrl.Run:
        steps, folder = num_iterations * 64 * 32, tmp_path / name
        return relayrl.train(env, algo=algo, steps=steps, run_dir=folder, progress=False, settings=settings, **more)

    whole = train("whole", 8)
    train("parts", 4)
    assert train("parts", 8, resume=True).result.parameter_hash == whole.result.parameter_hash
    log = (tmp_path / "whole" / "run.log").read_text()
    assert f"stay on {device}" in log
    assert "cannot be captured" not in log
    assert "torch trains it" not in log
