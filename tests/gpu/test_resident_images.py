"""Policies that see images in runs that stay on a GPU: captured, convolved by kernels, and the same again after a resume.

RELAYRL_TEST_DEVICE=cpu:0 python -m pytest tests/gpu/test_resident_images.py      the same loop in torch on the CPU
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import relayrl

NUM_ENVS, ROWS = 16, 8
SETTINGS: dict[str, Any] = {
    "environment.num_envs": NUM_ENVS,
    "trainer.time_horizon": ROWS,
    "network.hidden_sizes": (16,),
    "network.encoder_size": 32,
    "evaluation.episodes": 2,
    "evaluation.interval": None,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.num_minibatches": 2,
    "params.lr_schedule": "constant",
}


@pytest.mark.parametrize("memory", [None, {"kind": "gru", "size": 12, "sequence_length": 4}])
def test_a_run_is_captured_and_resumed_bit_for_bit(device: str, tmp_path: Path, memory: dict[str, Any] | None) -> None:
    settings = {**SETTINGS, "device": device, "environment.options.device": device, "network.memory": memory}

    def train(name: str, num_iterations: int, **more: Any) -> relayrl.Run:
        return relayrl.train(
            "relayrl.bench.gpu.synthetic_environments:moving_square",
            algo="ppo",
            steps=num_iterations * NUM_ENVS * ROWS,
            run_dir=tmp_path / name,
            progress=False,
            settings=settings,
            **more,
        )

    whole = train("whole", 6)
    train("parts", 3)
    assert train("parts", 6, resume=True).result.parameter_hash == whole.result.parameter_hash
    log = (tmp_path / "whole" / "run.log").read_text()
    assert f"stay on {device}" in log
    assert "cannot be captured" not in log
    assert "torch trains it" not in log
