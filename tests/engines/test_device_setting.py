"""The setting `device`: what it takes, what it says where there is no GPU, and how `auto` decides."""

from __future__ import annotations

import re

import pytest
import torch

import relayrl
from cli_in_process import relayrl as command
from relayrl.engines.device_trial import with_faster_of
from relayrl.engines.settings.mlagents_settings import from_mlagents
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.errors import ConfigError
from relayrl.models.compute_device import CPU, compute_device

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def settings(device: str) -> RunSettings:
    return build_run_settings("CartPole-v1", None, {"device": device}, [])


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:3"])
def test_devices_are_taken(device: str) -> None:
    assert settings(device).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "tpu:0", "CUDA", ""])
def test_other_names_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="give auto, cpu, cuda or cuda:N"):
        settings(device)


def test_the_cpu_is_a_device() -> None:
    assert compute_device("cpu") == CPU


def test_auto_is_for_whole_runs() -> None:
    with pytest.raises(ConfigError, match="measured before a whole run"):
        compute_device("auto")


@without_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_machine_without_a_gpu_gives_one_line(device: str, tmp_path) -> None:
    done = command("train", "CartPole-v1", "--device", device, "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert re.search(rf"device '{device}': .*CUDA.*, or use device cpu", done.complaint)
    assert not (tmp_path / "run").exists()


@without_gpu
def test_auto_without_a_gpu_is_the_cpu_and_says_why(tmp_path) -> None:
    small = {"evaluation.episodes": 0, "trainer.time_horizon": 8}
    run = relayrl.train("CartPole-v1", steps=64, device="auto", run_dir=tmp_path, settings=small, progress=False)
    assert run.settings.device == "cpu"
    assert "device=cpu: torch" in run.directory.log.read_text()


@pytest.mark.parametrize(("rates", "chosen"), [((200.0, 900.0), "cuda"), ((900.0, 200.0), "cpu")])
def test_auto_takes_the_faster_device_and_gives_both_figures(rates, chosen) -> None:
    measured = dict(zip(("cpu", "cuda"), rates, strict=True))
    notes: list[str] = []
    got = with_faster_of(settings("auto"), ("cpu", "cuda"), notes, lambda trial: measured[trial.device])
    assert got.device == chosen
    assert notes == [f"device={chosen}: {rates[0]:,.0f} steps/s on cpu, {rates[1]:,.0f} steps/s on cuda"]


def test_files_of_mlagents_name_the_device() -> None:
    values, notes = from_mlagents({"default_settings": {}, "torch_settings": {"device": "cuda:1"}})
    assert values["device"] == "cuda:1"
    assert not [note for note in notes if "torch_settings" in note]


@without_gpu
def test_a_trainer_of_trajectories_refuses_a_device_that_is_missing(tmp_path) -> None:
    args = relayrl.TrainerArgs("cartpole", tmp_path, obs_dim=4, act_dim=2, device="cuda")
    with pytest.raises(ConfigError, match="device 'cuda'"):
        _ = relayrl.RelayRLTrainer.ppo(args).policies
