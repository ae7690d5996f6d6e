"""Blocks joined are the block that would have been collected at once."""

import uuid

import numpy as np
import pytest

from relayrl.data.arrow.codec import encode
from relayrl.data.columns import copied_rollout, joined_rollouts
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.models.acting.actor import Actor
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.runtime.collector import Collector


class Indifferent(Actor):
    """Draws uniformly among what is allowed."""

    def __init__(self, space) -> None:
        self.head = likelihood_head(space)

    def distribution(self, obs, mask=None):
        while not isinstance(obs, np.ndarray):
            obs = next(iter(obs.values() if isinstance(obs, dict) else obs))
        return self.head.parameters_numpy(np.zeros((len(obs), self.head.num_outputs), np.float32), mask)


def collector(env: str, num_steps: int) -> Collector:
    envs = make_vector(env, EnvSettings(num_envs=2))
    envs.env_ids = tuple(uuid.UUID(int=b) for b in range(2))
    actors = {name: Indifferent(group.action_space) for name, group in envs.groups.items()}
    return Collector(envs, actors, num_steps=num_steps, seed=0, rng=np.random.default_rng(0))


@pytest.mark.parametrize("name", ["CountingEnv", "DyingAgents", "TakingTurns", "MaskedBandit", "NestedSpaces"])
def test_joined_blocks_are_one_block(name):
    env = f"relayrl.testing.toy_environments:{name}"
    whole = collector(env, 12).collect(0)
    pieces = collector(env, 3)
    blocks = [{group: copied_rollout(rollout) for group, rollout in pieces.collect(0).items()} for _ in range(4)]
    for group, rollout in whole.items():
        assert encode(joined_rollouts([block[group] for block in blocks])).equals(encode(rollout))
