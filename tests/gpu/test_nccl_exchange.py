"""Gradients of learners on GPUs go by nccl. One GPU holds one learner, so that a group of one is what a single GPU can show."""

from __future__ import annotations

import pytest
import torch

from relayrl.training.learners.exchange import Exchange, GradientBackend, new_store


def test_a_learner_on_a_gpu_adds_up_by_nccl(device: str) -> None:
    if device != "cuda":
        pytest.skip("nccl is for CUDA devices")
    exchange = Exchange(new_store(), rank=0, num_learners=1)
    gradient = torch.tensor([0.5, -2.0, 3.25], device="cuda")

    exchange.add_up(gradient)

    assert gradient.tolist() == [0.5, -2.0, 3.25]
    assert GradientBackend.NCCL in exchange._summing
