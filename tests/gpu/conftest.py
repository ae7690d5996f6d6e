"""Which device these tests run on: `cuda`, or what `RELAYRL_TEST_DEVICE` names. Without it they are skipped, and say so."""

import os

import pytest
import torch

VARIABLE = "RELAYRL_TEST_DEVICE"


@pytest.fixture(scope="session")
def device() -> str:
    name = os.environ.get(VARIABLE, "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return name
