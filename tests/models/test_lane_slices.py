"""A lane decides the same, bit for bit, whether all lanes are in one batch or each collector has some of them."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

import relayrl
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.extend import make_run_parts
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.lane_slices import SlicedActor
from relayrl.testing import FollowSignal

NUM_LANES = 7
CUTS = ((0, 1, 3, 7), (0, 7), (0, 2, 4, 5, 6, 7))
SPACES = {
    "a choice": (spaces.Discrete(4), "ppo"),
    "choices": (spaces.MultiDiscrete([3, 3]), "ppo"),
    "bits": (spaces.MultiBinary(3), "ppo"),
    "numbers": (spaces.Box(-1.0, 1.0, (2,)), "ppo"),
    "both": (spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (2,))}), "ppo"),
    "squashed": (spaces.Box(-1.0, 1.0, (2,)), "sac"),
    "noisy": (spaces.Box(-1.0, 1.0, (2,)), "td3"),
}


@pytest.fixture
def actor(request):
    space, algo = SPACES[request.param]
    relayrl.register_environment("follow", lambda: FollowSignal(action_space=space))
    settings = {"num_envs": NUM_LANES, "network.hidden_sizes": [64, 64]}
    parts = make_run_parts("follow", algo=algo, settings=settings)
    policy, generator = parts.policies["agent"], torch.Generator().manual_seed(0)
    for parameter in policy.parameters():  # fresh policies give numbers too small for a last bit to matter
        parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    made = parts.trainer.actor_for(policy)
    made.explore(Exploration(noise_scale=0.1))
    yield made
    parts.close()
    unregister_plugin(PluginKind.ENVIRONMENT, "follow")


@pytest.mark.parametrize("actor", SPACES, indirect=True)
@pytest.mark.parametrize("cuts", CUTS)
def test_parts_of_a_batch_decide_as_the_whole_does(actor, cuts):
    obs = actor.observation_space
    seen = np.random.default_rng(0).standard_normal((20, NUM_LANES, *obs.shape)).astype(np.float32)
    whole_rng = np.random.default_rng(1)
    rngs = [np.random.default_rng(1) for _ in cuts[1:]]
    bounds = list(itertools.pairwise(cuts))
    parts = [SlicedActor(actor, first, last - first, NUM_LANES) for first, last in bounds]
    for rows in seen:
        whole = actor.decide(rows, None, None, whole_rng)
        for part, rng, (first, last) in zip(parts, rngs, bounds, strict=True):
            own = part.decide(np.ascontiguousarray(rows[first:last]), None, None, rng)
            pairs = zip(leaves(whole.action), leaves(own.action), strict=True)
            assert all(np.array_equal(all_lanes[first:last], few) for all_lanes, few in pairs)
            assert whole.logp is None or np.array_equal(whole.logp[first:last], own.logp)
    assert all(rng.bit_generator.state == whole_rng.bit_generator.state for rng in rngs)


def leaves(tree):
    return [tree[key] for key in sorted(tree)] if isinstance(tree, dict) else [tree]


@pytest.mark.parametrize("actor", ["bits"], indirect=True)
def test_small_batches_alone_would_not(actor):
    seen = np.random.default_rng(0).standard_normal((200, NUM_LANES, *actor.observation_space.shape)).astype(np.float32)
    alone = SlicedActor(actor, 0, 1, NUM_LANES, equal_numbers=False)
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    different = [
        actor.decide(rows, None, None, rng).logp[0] != alone.decide(rows[:1], None, None, same).logp[0] for rows in seen
    ]
    assert any(different)
