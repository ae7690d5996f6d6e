"""`step_dense` gives what `step` gives, for every native environment whose agents live as long as their world."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relayrl.envs.native import native_registry

NUM_ENVS, NUM_STEPS = 5, 70
SHORT = {"max_episode_steps": 11, "max_cycles": 11}


def _env(name: str) -> native_registry.BatchedEnvironment:
    fields = native_registry.settings_class(name).model_fields
    options = {key: value for key, value in SHORT.items() if key in fields}
    env = native_registry.make(name, device="cpu:0", **options)
    env.init_num_envs(NUM_ENVS)
    env.reset(seed=3)
    return env


@pytest.mark.parametrize("name", native_registry.names())
def test_dense_steps_equal_steps(name: str) -> None:
    plain, dense = _env(name), _env(name)
    if not dense.steps_densely:
        assert dense.worlds.alive
        return
    rng = np.random.default_rng(0)
    num_ended = 0
    for _ in range(NUM_STEPS):
        actions = {}
        for group in plain.groups.values():
            drawn = [[group.action_space.sample() for _ in group.agent_ids] for _ in range(NUM_ENVS)]
            group.action_space.seed(int(rng.integers(1 << 30)))
            actions[group.name] = torch.as_tensor(np.array(drawn))
        expected, found = plain.step(actions), dense.step_dense(actions)
        torch.testing.assert_close(found.over, expected.episode_over, rtol=0, atol=0)
        num_ended += int(expected.episode_over.sum())
        for key, own in expected.groups.items():
            for column in ("obs", "reward", "terminated", "truncated"):
                torch.testing.assert_close(
                    getattr(found.groups[key], column), getattr(own, column), rtol=0, atol=0, msg=f"{key} {column}"
                )
            if own.final is not None:
                where = own.final.env, own.final.agent
                torch.testing.assert_close(found.final[key][where], own.final.obs, rtol=0, atol=0)
    assert num_ended >= NUM_ENVS, "no episode ended: nothing was compared that differs"
