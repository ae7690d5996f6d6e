"""Learners in processes of their own take the steps that one learner would take alone."""

import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

import relayrl
from relayrl.errors import ConfigError, LearningError
from relayrl.extend import make_run_parts
from relayrl.training.learners import learner_group
from relayrl.training.learners.exchange import Exchange, backend_of, store_at
from relayrl.training.learners.learner_group import LearnerGroup, LearnerProcess, own_gpu
from relayrl.training.learners.learner_process import learn_along
from waiting import DEADLINE_S


class Pictures(gymnasium.Env):
    """Whether the lighter half of a picture is the upper one."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._num_steps = 0
        return self._next(), {}

    def step(self, action):
        self._num_steps += 1
        reward = float(action == self._is_upper)
        return self._next(), reward, self._num_steps == 20, False, {}

    def _next(self):
        self._is_upper = int(self.np_random.integers(2))
        picture = self.np_random.integers(0, 100, (36, 36, 1), np.uint8)
        picture[18 * (1 - self._is_upper) :][:18] += 100
        return picture


relayrl.register_environment("learners-pictures", Pictures)
BATCHES = {
    "params.num_minibatches": 3,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 3,
    "trainer.time_horizon": 25,
}
KINDS = {
    "mlp": ("CartPole-v1", "ppo", {"environment.num_envs": 3}),
    "kl": ("CartPole-v1", "ppo", {"environment.num_envs": 3, "params.target_kl": 1e-4, "params.pi_lr": 0.01}),
    "memory": ("CartPole-v1", "ppo", {"network.memory": {"size": 8, "sequence_length": 6}}),
    "pictures": ("learners-pictures", "ppo", {"environment.num_envs": 2}),
    "teams": ("native:simple_spread", "mappo", {"environment.num_envs": 3}),
    "normalised": ("CartPole-v1", "ppo", {"params.normalize_returns": True, "network.normalize_observations": True}),
}


class LearnerThread:
    """A learner in a thread: nothing has to be imported again."""

    def __init__(self, place):
        self._thread = threading.Thread(target=self._run, args=(place,), daemon=True)
        self._thread.start()

    @staticmethod
    def _run(place):
        learn_along(Exchange(store_at(place.host, place.port), place.rank, place.num_learners))

    def end(self):
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def in_threads(monkeypatch):
    monkeypatch.setattr(learner_group, "LearnerGroup", partial(LearnerGroup, launch=LearnerThread))


def learned(kind, learners, num_updates=2):
    """Parameters of all policies after some updates, and the metrics of the last."""
    env, algo, own = KINDS[kind]
    parts = make_run_parts(env, algo=algo, settings={**BATCHES, **own, "learners": learners})
    try:
        for version in range(num_updates):
            parts.trainer.receive(parts.collect(version))
            metrics = parts.trainer.advance()
        return {name: policy.state_dict() for name, policy in parts.policies.items()}, metrics
    finally:
        parts.close()


@pytest.mark.parametrize("kind", KINDS)
def test_two_learners_take_the_steps_of_one(kind, in_threads):
    (alone, by_one), (together, by_two) = (learned(kind, learners) for learners in (1, 2))
    for group in alone:
        for name, value in alone[group].items():
            # Rounding differs, and Adam's first steps are as long where a gradient is almost nothing.
            assert torch.allclose(value, together[group][name], rtol=1e-3, atol=2e-5), (group, name)
    assert by_one.keys() == by_two.keys()
    for name in by_one:
        assert by_two[name] == pytest.approx(by_one[name], rel=1e-3, abs=1e-5), name
    if kind == "kl":
        assert by_two["policy/gradient_steps"] < 6  # the limit was met, by all rows, at the same step


def test_more_learners_than_rows_are_of_no_harm(in_threads):
    env, algo, _ = KINDS["mlp"]
    few = {**BATCHES, "environment.num_envs": 1, "trainer.time_horizon": 4, "params.num_minibatches": 4}
    found = []
    for learners in (1, 3):
        parts = make_run_parts(env, algo=algo, settings={**few, "learners": learners})
        parts.trainer.receive(parts.collect(0))
        parts.trainer.advance()
        found.append(parts.policies["agent"].state_dict())
        parts.close()
    assert all(torch.allclose(found[0][name], found[1][name], rtol=1e-3, atol=2e-5) for name in found[0])


RUN = {
    "learners": 2,
    "evaluation.episodes": 1,
    "statistics.tensorboard": False,
    "trainer.checkpoint_interval": 256,
    **BATCHES,
}


def run(path, steps=600, **options):
    return relayrl.train(
        "CartPole-v1", steps=steps, num_envs=4, seed=3, run_dir=path, progress=False, settings=RUN, **options
    )


@pytest.mark.slow
def test_a_run_is_repeated_and_resumed_bit_for_bit(tmp_path):
    whole = run(tmp_path / "whole").result.parameter_hash

    def stop(live):
        if live.num_env_steps >= 300:
            live.stop()

    run(tmp_path / "cut", callbacks=[stop])
    assert run(tmp_path / "cut", resume=True).result.parameter_hash == whole


def processes(monkeypatch):
    """The learners' processes, as they are started."""
    started = []

    class Remembered(LearnerProcess):
        def __init__(self, place):
            super().__init__(place)
            started.append(self._process)

    monkeypatch.setattr(learner_group, "LearnerGroup", partial(LearnerGroup, launch=Remembered))
    return started


@pytest.mark.slow
def test_a_learner_that_dies_ends_the_run_with_an_error_and_it_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    started = processes(monkeypatch)

    def kill(live):
        if live.num_env_steps >= 300:
            started[0].kill()
            started[0].wait()

    with pytest.raises(LearningError, match="a learner of this run has ended"):
        run(tmp_path / "run", callbacks=[kill])
    assert run(tmp_path / "run", resume=True).result.num_env_steps >= 600
    assert [process.poll() is None for process in started] == [False, False]  # nobody outlives its run


def test_algorithms_that_learn_from_replay_refuse(tmp_path):
    with pytest.raises(ConfigError, match="several learners are for on-policy algorithms"):
        relayrl.train(
            "Pendulum-v1", algo="sac", steps=10, run_dir=tmp_path / "run", settings={"learners": 2}, progress=False
        )


@pytest.mark.parametrize(("device", "name"), [("cpu", "gloo"), ("cuda", "nccl"), ("cuda:3", "nccl")])
def test_gradients_go_by_what_their_device_asks_for(device, name):
    assert backend_of(torch.device(device)).value == name


def test_learners_of_a_machine_see_a_gpu_each_where_there_are_several(monkeypatch):
    assert own_gpu(1) == {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [own_gpu(rank)["CUDA_VISIBLE_DEVICES"] for rank in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert own_gpu(1) == {"CUDA_VISIBLE_DEVICES": "7"}
