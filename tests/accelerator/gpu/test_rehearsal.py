"""A rehearsal finds every kernel that the first iteration of a run launches, and leaves no trace in the run."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from relayrl.accelerator.gpu.compilation.rehearsal import Kernel, launches_given_to, rehearse
from relayrl.accelerator.gpu.environments.episode_kernels import add_episodes
from relayrl.accelerator.gpu.environments.fused_rollouts import known_rollout
from relayrl.accelerator.gpu.fused_update import FusedUpdate, known_update, sees_plainly
from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.api import train
from relayrl.engines.device import ended_episodes, resident_collector, resident_pace, resident_run
from relayrl.engines.device.resident_run import build_resident
from relayrl.engines.settings.run_settings import build_run_settings

NUM_STEPS, NUM_ENVS, LIMIT = 5, 6, 3
DISCRETE = {"environment.options.continuous_actions": False}
WIDE = {"network.hidden_sizes": (130, 20)}
REGULATOR = "relayrl.bench.gpu.synthetic_environments:regulator"
CASES = [
    ("native:CartPole", "ppo", {"params.target_kl": 1e-9, "params.num_minibatches": 1}),
    ("native:CartPole", "ppo", {"params.train_vf_iters": 3, "params.value_clip": 0.2}),
    ("native:Pendulum", "ppo", {"network.normalize_observations": True, "params.normalize_returns": True}),
    ("native:Pendulum", "ppo", WIDE),
    ("native:simple_spread", "ippo", DISCRETE),
    ("native:simple_spread", "mappo", {**DISCRETE, "network.normalize_observations": True}),
    ("native:simple_spread", "mappo", {"environment.options.continuous_actions": True}),
    (REGULATOR, "ppo", {"environment.options.device": "cpu:0", "network.activation": "relu"}),
]


@pytest.fixture
def kernels_on_the_host(monkeypatch):
    """Runs on `cpu:0` take the kernels that those on a GPU do, in Triton's interpreter."""

    def update(*parts, tf32):
        del tf32
        return known_update(*parts, Precision.NEAR_FLOAT32)

    def rollout(env, actors):
        return known_rollout(env, next(iter(actors.values()))) if len(actors) == 1 else None

    monkeypatch.setattr(resident_run, "fastest_device_update", update)
    monkeypatch.setattr(resident_collector, "fused_rollout_of", rollout)
    monkeypatch.setattr(ended_episodes, "fused_episodes", lambda num_agents, device: add_episodes)


def build(env, algo, extra):
    settings = {
        "device": "cpu:0",
        "environment.num_envs": NUM_ENVS,
        "trainer.time_horizon": NUM_STEPS,
        "network.hidden_sizes": (8, 8),
        "params.num_minibatches": 2,
        "params.train_pi_iters": 2,
        "params.train_vf_iters": 2,
        **extra,
    }
    if env.startswith("native:"):
        settings["environment.options." + ("max_cycles" if "simple" in env else "max_episode_steps")] = LIMIT
    return build_resident(build_run_settings(env, None, {"algo": algo}, list(settings.items())))


def iteration(parts, fill):
    rollouts = fill(NUM_STEPS)
    for name, learner in parts.resident_learners.items():
        learner.learn(name, rollouts)


def launch_of(kernel, args, kwargs):
    """What decides which machine code a launch needs: types of tensors, numbers and constants."""
    kinds = [str(arg.dtype) if isinstance(arg, torch.Tensor) else (type(arg), arg) for arg in args]
    return kernel, kernel.function.__name__, tuple(kinds), tuple(sorted(kwargs.items()))


def numbers_of(parts):
    """Every number that a run keeps on its device."""
    found = {}
    for name, learner in parts.resident_learners.items():
        update = learner.update
        tensors = [*update.policy.state_dict().values(), learner._sums, *update.policy.buffers()]
        for adam in (update.pi_adam, update.vf_adam):
            tensors += [adam.num_steps, adam.flat.vector, adam.flat.gradient, adam.flat.first_moment]
        found |= {f"{name}/{i}": tensor.clone() for i, tensor in enumerate(tensors)}
    for name, rollout in parts.collector.rollouts.items():
        found |= {f"{name}/{key}": own.clone() for key, own in vars(rollout).items() if isinstance(own, torch.Tensor)}
    state = parts.collector.state_dict()
    found |= {
        f"env/{key}": torch.as_tensor(own) for key, own in state["environment"].items() if not isinstance(own, dict)
    }
    found |= {f"episodes/{key}": torch.as_tensor(own) for key, own in state["episodes"].items()}
    return {key: own.clone() for key, own in {**found, "generator": state["generator"]}.items()}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert [key for key, own in ours.items() if not torch.equal(own, theirs[key])] == []


@pytest.mark.parametrize(("env", "algo", "extra"), CASES)
def test_an_iteration_launches_what_was_rehearsed(kernels_on_the_host, env, algo, extra):
    parts = build(env, algo, extra)
    assert all(
        type(own.update) is FusedUpdate and sees_plainly(own.update.policy) for own in parts.resident_learners.values()
    )
    collector = parts.collector
    scheduled, launched = set(), set()
    rehearsed = partial(iteration, parts, collector.rehearse)
    rehearse(rehearsed, [collector.generator], lambda k, grid, args, kwargs: scheduled.add(launch_of(k, args, kwargs)))

    def launch(kernel, grid, args, kwargs):
        launched.add(launch_of(kernel, args, kwargs))
        kernel.function[grid](*args, **kwargs)

    with launches_given_to(launch):
        iteration(parts, collector.fill)
    assert len(scheduled) >= 8
    names = {name for _, name, *_ in scheduled}
    assert ("rollout_kernel" in names) != ("act_kernel" in names or "draw_kernel" in names)
    assert {name for _, name, *_ in launched ^ scheduled} == set()


@pytest.mark.parametrize(("env", "algo", "extra"), CASES)
def test_a_rehearsal_leaves_no_trace(kernels_on_the_host, env, algo, extra):
    ours, theirs = build(env, algo, extra), build(env, algo, extra)
    before = numbers_of(ours)
    rehearsed = partial(iteration, ours, ours.collector.rehearse)
    rehearse(rehearsed, [ours.collector.generator], lambda *_: None)
    assert_equal(before, numbers_of(ours))
    for parts in (ours, theirs):
        iteration(parts, parts.collector.fill)
    after = numbers_of(ours)
    assert_equal(after, numbers_of(theirs))
    assert any(not torch.equal(own, before[key]) for key, own in after.items())


@pytest.mark.parametrize("env", ["native:CartPole", "native:Pendulum"])
def test_a_run_is_rehearsed_once_and_learns_the_same(kernels_on_the_host, monkeypatch, tmp_path, env):
    settings = {
        "trainer.time_horizon": 4,
        "params.train_pi_iters": 1,
        "params.train_vf_iters": 1,
        "evaluation.episodes": 0,
    }
    settings |= {"params.num_minibatches": 2, "network.hidden_sizes": (8, 8), "params.normalize_returns": True}
    hashes, rehearsals = [], []

    def noted(work, generators):
        rehearsals.append(0)

        def count(*_):
            rehearsals[-1] += 1

        rehearse(work, generators, count)

    monkeypatch.setattr(resident_pace, "compile_kernels_of", noted)
    for is_known in (False, True):
        monkeypatch.setattr(resident_pace, "is_exactly_known", lambda update, known=is_known: known)
        run = train(
            env,
            steps=30,
            num_envs=2,
            device="cpu:0",
            settings=settings,
            run_dir=tmp_path / str(is_known),
            progress=False,
        )
        hashes.append(run.result.parameter_hash)
    assert hashes[0] == hashes[1]
    assert len(rehearsals) == 1
    assert rehearsals[0] > 10


def test_nothing_is_written_and_new_memory_is_zeros():
    kept, out = torch.arange(3.0), torch.ones(3)
    seen = {}

    def work():
        seen["same"] = kept.add_(1.0) is kept and torch.mul(kept, 2.0, out=out) is out
        kept[1] = 7.0
        torch._foreach_mul_([kept, out], 2.0)
        seen["empty"] = torch.empty(4), torch.empty_like(kept), kept.new_empty(2)
        seen["made"] = torch.zeros(2) + 1.0, kept.index_select(0, torch.empty(2, dtype=torch.int64))

    rehearse(work, [], lambda *_: None)
    assert seen["same"]
    assert (kept.tolist(), out.tolist()) == ([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])
    assert all(not made.any() for made in seen["empty"])
    assert [made.tolist() for made in seen["made"]] == [[1.0, 1.0], [0.0, 0.0]]


def test_work_that_fails_leaves_launches_and_random_numbers_as_they_were():
    generator = torch.Generator().manual_seed(3)
    expected = torch.rand(2, generator=torch.Generator().manual_seed(3))
    kernel = Kernel(lambda: None)

    def work():
        torch.rand(5, generator=generator)
        kernel[(1,)]()
        raise RuntimeError("it fails")

    scheduled = []
    with pytest.raises(RuntimeError, match="it fails"):
        rehearse(work, [generator], lambda *launch: scheduled.append(launch))
    assert [launch[0] for launch in scheduled] == [kernel]
    assert torch.equal(torch.rand(2, generator=generator), expected)
    assert kernel[(1,)] is not None
