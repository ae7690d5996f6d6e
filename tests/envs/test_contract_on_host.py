"""Environments on a device behind NumPy arrays."""

from __future__ import annotations

import numpy as np
import torch

from relayrl.envs.adapters import vmas_adapter
from relayrl.envs.environment_contract import StatefulEnvironment, VectorEnvironment
from relayrl.envs.vector.on_host import on_host
from relayrl.testing.toy_environments import Herd, TorchCounting


def at_home(env: VectorEnvironment, num_envs: int = 2) -> VectorEnvironment:
    wrapped = on_host(env)
    wrapped.init_num_envs(num_envs)
    wrapped.reset(seed=0)
    return wrapped


def test_an_environment_with_numpy_arrays_is_left_as_it_is() -> None:
    env = Herd()
    assert on_host(env) is env


def test_tensors_come_out_as_numpy_arrays() -> None:
    env = at_home(TorchCounting(terminate_at=1))
    step = env.step({"agent": np.zeros((2, 1), np.int64)})
    group = step.groups["agent"]
    assert group.final is not None
    arrays = (
        group.obs,
        group.active,
        group.reward,
        group.terminated,
        group.final.env,
        group.final.obs,
        step.episode_over,
    )
    assert all(type(array) is np.ndarray for array in arrays)
    assert group.final.obs.tolist() == [[1.0]]
    assert group.reward.tolist() == [[1.0], [1.0]]


def test_arrays_go_in_as_tensors() -> None:
    class Recorder(TorchCounting):
        def step(self, actions):  # type: ignore[no-untyped-def]
            self.given = actions["agent"]
            return super().step(actions)

    inner = Recorder()
    at_home(inner).step({"agent": np.array([[1], [0]])})
    assert isinstance(inner.given, torch.Tensor)
    assert inner.given.tolist() == [[1], [0]]
    assert inner.given.dtype == torch.int64


def test_the_device_is_the_host_and_ids_are_those_inside() -> None:
    inner = TorchCounting()
    env = at_home(inner)
    assert env.device == "cpu"
    assert env.env_ids == inner.env_ids
    assert env.num_envs == 2


def test_a_wrapped_environment_with_envs_keeps_them() -> None:
    inner = TorchCounting()
    ids = inner.init_num_envs(3)
    assert on_host(inner).env_ids == ids


def test_states_can_be_saved_where_the_environment_inside_can() -> None:
    env = at_home(TorchCounting())
    assert isinstance(env, StatefulEnvironment)
    env.step({"agent": np.zeros((2, 1), np.int64)})
    state = env.get_state()
    env.reset()
    env.set_state(state)
    assert env.build_observation().groups["agent"].obs.tolist() == [[[1.0]], [[1.0]]]


def test_what_the_environment_inside_cannot_promise_is_not_promised() -> None:
    env = on_host(vmas_adapter.make("simple_spread", device="cpu:0"))
    assert not isinstance(env, StatefulEnvironment)
    assert not env.independent_streams
