"""Policies with a memory in runs that stay on a device: what lanes remember, whole runs, and a cue that must be recalled."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.utils._python_dispatch import TorchDispatchMode

import relayrl
from cli_in_process import relayrl as relayrl_command
from relayrl.engines.device.resident_run import ResidentParts, build_resident
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.extend import AgentGroup, BatchedEnvironment, Blueprint, Worlds, namespace_of
from relayrl.models.exports.exported import ExportedActor

NUM_CUES, DELAY = 2, 4
GRU = {"kind": "gru", "size": 6, "sequence_length": 5}
LSTM = {"kind": "lstm", "size": 6, "sequence_length": 64}
SMALL: dict[str, Any] = {
    "device": "cpu:0",
    "environment.num_envs": 4,
    "trainer.time_horizon": 16,
    "trainer.summary_freq": 128,
    "network.hidden_sizes": (8,),
    "network.normalize_observations": True,
    "evaluation.episodes": 2,
    "evaluation.interval": None,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.num_minibatches": 2,
    "params.lr_schedule": "constant",
}


class RecallWorlds(Worlds):
    """`relayrl.testing.RecallCue` as a batched environment: a cue, blanks, then the step that asks for it."""

    def __init__(self, xp: Any, num_worlds: int) -> None:
        self.memory = xp.zeros((2, num_worlds), "float32")  # the cue, and how many steps were taken
        self.state = {"memory": self.memory}
        self.observations = {"agent": xp.zeros((num_worlds, 1, NUM_CUES + 1), "float32")}
        self.rewards = {"agent": xp.zeros((num_worlds, 1), "float32")}
        self.terminated = xp.zeros((num_worlds,), "bool")

    def begin(self, draws: Any) -> None:
        self.memory[0] = 1.0 * (draws[0] < 0.5)
        self.memory[1] = 0.0
        self.observe()

    def advance(self, actions: Any) -> None:
        cue, num_steps = self.memory
        self.terminated[...] = num_steps == DELAY + 1
        self.rewards["agent"][:, 0] = 1.0 * (self.terminated & (actions["agent"][:, 0] == cue))
        num_steps += 1
        self.observe()

    def observe(self) -> None:
        cue, num_steps = self.memory
        seen = self.observations["agent"][:, 0]
        for number in range(NUM_CUES):
            seen[:, number] = 1.0 * ((num_steps == 0) & (cue == number))
        seen[:, -1] = 1.0 * (num_steps == DELAY + 1)


def recall(device: str = "cpu") -> BatchedEnvironment:
    xp = namespace_of(device)
    space = spaces.Box(0.0, 1.0, (NUM_CUES + 1,), np.float32)
    group = AgentGroup("agent", ("agent_0",), space, spaces.Discrete(NUM_CUES))
    worlds = partial(RecallWorlds, xp)
    return BatchedEnvironment(Blueprint("recall", {"agent": group}, 100, 1, worlds, xp))


def _train(path: Path, env: str, algo: str, steps: int, **more: Any) -> relayrl.Run:
    settings = {**SMALL, **more.pop("settings", {})}
    return relayrl.train(env, algo=algo, steps=steps, run_dir=path, progress=False, settings=settings, **more)


def _parts(env: str, algo: str, memory: dict[str, Any], **more: Any) -> ResidentParts:
    settings = {**SMALL, "network.memory": memory, **more}
    parts = build_resident(build_run_settings(env, None, {"algo": algo}, list(settings.items())))
    assert isinstance(parts, ResidentParts)
    return parts


def test_lanes_remember_until_their_episode_ends() -> None:
    parts = _parts("native:CartPole", "ppo", GRU, **{"environment.options.max_episode_steps": 7})
    (rollout,) = parts.collector.fill(16).values()  # type: ignore[attr-defined]
    memory = rollout.memory
    begins = torch.cat([torch.ones_like(rollout.ended[:1]), rollout.ended[:-1]])
    assert 8 <= int(begins.sum()) < 64
    assert bool((memory.before_rows[begins] == 0).all())
    assert bool((memory.before_rows[~begins].abs().amax(-1) > 0).all())
    carried = memory.actor.abs().amax(-1) > 0
    torch.testing.assert_close(carried, ~rollout.ended[-1])
    held = memory.actor.clone()
    parts.collector.fill(16)  # type: ignore[attr-defined]
    torch.testing.assert_close(memory.before_rows[0], held, rtol=0, atol=0)


def test_recorded_memories_give_the_log_probabilities_that_acting_had() -> None:
    """With the parameters that acted, what training unrolls is what happened: also on rows after a sequence's start."""
    parts = _parts("native:simple_spread", "ippo", GRU, **{"environment.options.max_cycles": 7})
    (learner,), (name,) = parts.resident_learners.values(), parts.resident_learners
    for _ in range(2):
        rollouts = parts.collector.fill(16)  # type: ignore[attr-defined]
    moved = [
        p.data.normal_(std=0.5, generator=torch.Generator().manual_seed(0)) for p in learner.update.policy.parameters()
    ]
    assert moved
    rollouts = parts.collector.fill(16)  # type: ignore[attr-defined]
    learner.algorithm.params = learner.algorithm.params.model_copy(update={"pi_lr": 1e-30, "target_kl": None})
    learner.take_params(0.0)
    learner.learn(name, rollouts)
    metrics = learner.fetch_metrics()
    assert metrics["policy/kl"] == pytest.approx(0.0, abs=1e-9)
    assert metrics["policy/gradient_steps"] == 4


class WithoutWaiting(TorchDispatchMode):
    """Raises where a GPU would have to be asked for something."""

    ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in self.ASKS or by_mask:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("env", "algo", "memory"),
    [
        ("native:CartPole", "ppo", LSTM),
        ("native:simple_speaker_listener", "mappo", GRU),
        ("native:Pendulum", "ppo", GRU),
    ],
)
def test_an_iteration_asks_the_device_nothing(env: str, algo: str, memory: dict[str, Any]) -> None:
    parts = _parts(env, algo, memory)
    for _ in range(2):
        with WithoutWaiting():
            rollouts = parts.collector.fill(16)  # type: ignore[attr-defined]
            for name, learner in parts.resident_learners.items():
                learner.learn(name, rollouts)


@pytest.mark.parametrize(
    ("env", "algo", "memory"),
    [
        ("native:CartPole", "ppo", GRU),
        ("native:Pendulum", "ppo", LSTM),
        ("native:simple_spread", "ippo", LSTM),
        ("native:simple_speaker_listener", "mappo", GRU),
    ],
)
def test_a_run_that_is_resumed_equals_one_that_was_not(
    tmp_path: Path, env: str, algo: str, memory: dict[str, Any]
) -> None:
    more = {"network.memory": memory}
    whole = _train(tmp_path / "whole", env, algo, 640, settings=more)
    _train(tmp_path / "parts", env, algo, 320, settings=more)
    resumed = _train(tmp_path / "parts", env, algo, 640, resume=True, settings=more)
    assert resumed.result.num_env_steps == whole.result.num_env_steps == 640
    assert resumed.result.parameter_hash == whole.result.parameter_hash
    assert "stay on cpu:0" in (tmp_path / "whole" / "run.log").read_text()


@pytest.mark.parametrize("algo", ["ippo", "mappo"])
@pytest.mark.parametrize(("first", "then"), [("cpu:0", "cpu"), ("cpu", "cpu:0")])
def test_runs_move_between_the_host_and_a_device(tmp_path: Path, algo: str, first: str, then: str) -> None:
    memory = {"network.memory": GRU}
    begun = _train(tmp_path / "run", "native:simple_spread", algo, 320, settings={"device": first, **memory})
    before = begun.result.parameter_hash
    moved = _train(
        tmp_path / "run", "native:simple_spread", algo, 640, settings={"device": then, **memory}, resume=True
    )
    assert moved.result.num_env_steps == 640
    assert moved.result.parameter_hash != before


def test_what_was_trained_is_exported_with_its_memory(tmp_path: Path) -> None:
    _train(tmp_path / "run", "native:simple_spread", "mappo", 320, settings={"network.memory": GRU})
    actor = ExportedActor(tmp_path / "run" / "model.onnx")
    assert actor.memory_width == 6
    evaluated = relayrl_command("evaluate", str(tmp_path / "run"), "--episodes", "3", "--json")
    assert evaluated.returncode == 0, evaluated.complaint
    assert json.loads(evaluated.stdout.splitlines()[-1])["episodes"] == 3


def test_the_last_rollout_may_be_shorter(tmp_path: Path) -> None:
    run = _train(tmp_path / "run", "native:CartPole", "ppo", 200, settings={"network.memory": GRU})
    assert run.result.num_env_steps == 200


def test_more_minibatches_than_lanes_keep_the_environment_on_the_host(tmp_path: Path) -> None:
    more = {"network.memory": GRU, "params.num_minibatches": 5}
    _train(tmp_path / "run", "native:CartPole", "ppo", 64, settings=more)
    assert "minibatches for a memory are whole lanes" in (tmp_path / "run" / "run.log").read_text()


RECALL: dict[str, Any] = {
    "environment.num_envs": 16,
    "environment.options.device": "cpu:0",
    "trainer.time_horizon": 32,
    "params.pi_lr": 5e-3,
    "params.vf_lr": 5e-3,
    "params.train_pi_iters": 4,
    "params.train_vf_iters": 4,
    "params.num_minibatches": 4,
    "params.target_kl": None,
    "params.entropy_coef": 0.01,
    "evaluation.episodes": 64,
}


@pytest.mark.parametrize(
    ("memory", "least", "most"),
    [
        ({"kind": "lstm", "size": 16, "sequence_length": 16}, 0.95, 1.0),
        ({"kind": "gru", "size": 16, "sequence_length": 64}, 0.95, 1.0),
        ({"kind": "lstm", "size": 2, "sequence_length": 1}, 0.0, 0.8),  # gradients that do not reach the cue
        (None, 0.0, 0.75),
    ],
)
def test_a_cue_is_recalled(tmp_path: Path, memory: dict[str, Any] | None, least: float, most: float) -> None:
    run = _train(tmp_path / "run", f"{__name__}:recall", "ppo", 20 * 512, settings={**RECALL, "network.memory": memory})
    assert "stay on cpu:0" in (tmp_path / "run" / "run.log").read_text()
    assert least <= run.result.mean_return <= most
