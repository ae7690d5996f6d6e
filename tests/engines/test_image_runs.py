"""Whole runs from pixels: stopped and resumed, recorded, exported, with a memory, and learning."""

import json
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.environment_contract import ScalarEnvironment, ScalarReset, ScalarStep, StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words
from relayrl.sinks.contract import open_source

SIDE, HORIZON = 20, 12


class Dot(ScalarEnvironment, StatefulEnvironment):
    """A bright dot wanders over a dark square, moved by the action; three frames are stacked, and being in the middle pays."""

    def __init__(self, *, is_discrete: bool = False) -> None:
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.action_space = spaces.Discrete(4) if is_discrete else spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._is_discrete, self._random = is_discrete, np.random.default_rng()
        self._place, self._num_steps = np.zeros(2), 0
        self._frames = np.zeros((SIDE, SIDE, 3), np.uint8)

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._place, self._num_steps = self._random.uniform(0, SIDE - 1, 2), 0
        self._frames = np.repeat(self._frame()[..., None], 3, -1)
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        move = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)][int(action)]) if self._is_discrete else np.asarray(action)
        self._num_steps += 1
        self._place = np.clip(self._place + 2 * move + self._random.normal(0, 0.3, 2), 0, SIDE - 1)
        self._frames = np.concatenate([self._frames[..., 1:], self._frame()[..., None]], -1)
        reward = -float(np.abs(self._place / (SIDE - 1) - 0.5).mean())
        return ScalarStep(self.build_observation(), reward, False, self._num_steps >= HORIZON, {})

    def _frame(self) -> Array:
        frame = np.zeros((SIDE, SIDE), np.uint8)
        y, x = self._place.astype(int)
        frame[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] = 255
        return frame

    def build_observation(self) -> Array:
        return self._frames.copy()

    def get_state(self) -> dict[str, Array]:
        return {
            "place": self._place.copy(),
            "frames": self._frames.copy(),
            "num_steps": np.array(self._num_steps),
            "random": generator_to_words(self._random),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._place, self._frames = np.array(state["place"]), np.array(state["frames"])
        self._num_steps = int(state["num_steps"])
        self._random = generator_from_words(state["random"])


ENV = f"{__name__}:Dot"
COMMON = {
    "environment.num_envs": 2,
    "network.hidden_sizes": (8,),
    "network.encoder_size": 8,
    "evaluation.episodes": 1,
    "trainer.summary_freq": 40,
    "trainer.checkpoint_interval": 40,
}
PPO = {
    "algo": "ppo",
    "environment.options": {"is_discrete": True},
    "trainer.time_horizon": 8,
    "params.num_minibatches": 2,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
}
REPLAYED = {
    "params.batch_size": 8,
    "params.buffer_size": 60,
    "params.learning_starts": 20,
    "params.update_interval": 4,
    "params.train_iters": 1,
    "params.random_shift": 2,
    "params.num_step_returns": 2,
    "params.priority_exponent": 0.6,
    "params.priority_correction_end": 0.4,  # no schedule, which would depend on the length of the run
}
MEMORY = {"network.memory": {"kind": "gru", "size": 6, "sequence_length": 8}}
CASES = {
    "ppo": PPO,
    "ppo with a memory": PPO | MEMORY,
    "ppo with an encoder each": PPO | {"network.shared_encoder": False},
    "impala with a resnet": PPO | {"algo": "impala", "network.encoder": "resnet", "params.train_pi_iters": None},
    "sac": REPLAYED | {"algo": "sac"},
    "td3": REPLAYED | {"algo": "td3"},
}


def settings_of(flags, max_steps):
    given = {key: value for key, value in (COMMON | flags).items() if value is not None}
    return build_run_settings(ENV, None, given | {"trainer.max_steps": max_steps}, [])


def train(path, settings, *, resumes=False):
    directory = RunDirectory(path)
    if not resumes:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    if resumes:
        engine.resume()
    engine.run(lambda _: None)
    return json.loads((path / "result.json").read_text())


IN_WORKERS = PPO | {"environment.num_envs": 4, "evaluation.episodes": 0, "threads": 2}


@pytest.fixture
def _as_many_threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_as_many_threads_as_before")
def test_with_workers_acting_has_one_thread_and_learning_those_of_the_settings(tmp_path):
    seen = {}
    for workers in (0, 2):
        settings = settings_of(IN_WORKERS | {"environment.workers": workers}, 64)
        directory = RunDirectory(tmp_path / str(workers))
        directory.create(settings)
        engine = LocalEngine(settings, directory, tensorboard=False)
        threads = seen[workers] = {"acting": set(), "learning": set()}

        def look(module, args, threads=threads):
            if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
                threads["learning" if torch.is_grad_enabled() else "acting"].add(torch.get_num_threads())

        modules = engine._parts.policies["agent"].modules()
        next(each for each in modules if isinstance(each, torch.nn.Conv2d)).register_forward_pre_hook(look)
        engine.run(lambda _: None)
    assert seen == {0: {"acting": {2}, "learning": {2}}, 2: {"acting": {1}, "learning": {2}}}


@pytest.mark.usefixtures("_as_many_threads_as_before")
def test_any_number_of_workers_gives_the_same_parameters_also_after_a_resume(tmp_path):
    whole = {
        train(tmp_path / str(n), settings_of(IN_WORKERS | {"environment.workers": n}, 160))["parameter_hash"]
        for n in (1, 2, 4)
    }
    train(tmp_path / "parts", settings_of(IN_WORKERS | {"environment.workers": 2}, 96))
    parts = train(tmp_path / "parts", settings_of(IN_WORKERS | {"environment.workers": 4}, 160), resumes=True)
    assert whole == {parts["parameter_hash"]}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_ends_as_the_whole_one(case, tmp_path):
    whole = train(tmp_path / "whole", settings_of(CASES[case], 160))
    train(tmp_path / "parts", settings_of(CASES[case], 80))
    parts = train(tmp_path / "parts", settings_of(CASES[case], 160), resumes=True)
    assert parts["num_env_steps"] == whole["num_env_steps"] == 160
    for key in ("parameter_hash", "returns", "train_return"):
        assert parts[key] == whole[key], key


def test_images_are_recorded_as_bytes(tmp_path):
    settings = settings_of(PPO | {"record": f"arrow:{tmp_path / 'steps'}"}, 32)
    train(tmp_path / "run", settings)
    trajectories = list(open_source(f"arrow:{tmp_path / 'steps'}"))
    assert sum(len(trajectory) for trajectory in trajectories) == 32
    assert all(trajectory.obs.dtype == np.uint8 for trajectory in trajectories)


class Catch(gymnasium.Env):
    """A ball falls through 5x5 cells of 4x4 pixels; a paddle on the lowest row moves left, stays or moves right."""

    observation_space = spaces.Box(0, 255, (20, 20, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._ball, self._row, self._paddle = int(self.np_random.integers(5)), 0, 2
        return self._picture(), {}

    def step(self, action):
        self._row += 1
        self._paddle = min(max(self._paddle + int(action) - 1, 0), 4)
        has_landed = self._row == 4
        reward = (1.0 if self._paddle == self._ball else -1.0) if has_landed else 0.0
        return self._picture(), reward, has_landed, False, {}

    def _picture(self):
        cells = np.zeros((5, 5, 1), np.uint8)
        cells[self._row, self._ball] = 255
        cells[4, self._paddle] = 128
        return cells.repeat(4, 0).repeat(4, 1)


def catch(path, **changes):
    flags = {
        "algo": "ppo",
        "environment.num_envs": 8,
        "network.hidden_sizes": (),
        "network.encoder_size": 64,
        "trainer.time_horizon": 32,
        "trainer.max_steps": 8_000,
        "evaluation.episodes": 20,
        "params": {"pi_lr": 1e-3, "vf_lr": 1e-3, "train_pi_iters": 4, "train_vf_iters": 4, "num_minibatches": 4}
        | {"lam": 0.95, "entropy_coef": 0.01, "target_kl": None},
    }
    settings = build_run_settings(f"{__name__}:Catch", None, flags | changes, [])
    return float(np.mean(train(path, settings)["returns"]))


def test_ppo_learns_to_catch_what_it_sees(tmp_path):
    assert catch(tmp_path / "run") > 0.8


def test_a_policy_that_sees_nothing_does_not(tmp_path, monkeypatch):
    from relayrl.models.networks.image_encoder import ImageEncoder

    of_leaves = ImageEncoder.of_leaves
    monkeypatch.setattr(ImageEncoder, "of_leaves", lambda self, leaves: of_leaves(self, [leaf * 0 for leaf in leaves]))
    assert catch(tmp_path / "run") < 0.5
