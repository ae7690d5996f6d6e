"""One encoder for actor and critic: who trains it, and that its gradient is the one torch finds by itself."""

import copy
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.critics.critic_views import LocalView
from relayrl.algorithms.losses import clipped_surrogate
from relayrl.algorithms.on_policy_params import PPOParams
from relayrl.algorithms.params import DDPGParams, SACParams, TD3Params
from relayrl.algorithms.ppo import PPO
from relayrl.algorithms.sac import SAC
from relayrl.algorithms.td3 import DDPG, TD3
from relayrl.algorithms.updates.image_update import EncodedStep, RecurrentSharedEncoderUpdate, SharedEncoderUpdate
from relayrl.algorithms.updates.random_shift import RandomShift
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.errors import ConfigError
from relayrl.models.network_settings import MemorySettings, NetworkSettings
from relayrl.models.networks.image_layout import image_layout
from relayrl.models.policy import Policy, parameter_hash
from relayrl.models.recurrent_policy import actor_critic
from relayrl.training.replay.joint_replay import GroupTransitions, JointTransitions

SPACE = spaces.Box(0, 255, (20, 20, 2), np.uint8)
NETWORK = {"hidden_sizes": (8,), "encoder_size": 12}
T, L = 6, 4


def rollout(rng, *, with_value=False):
    lanes = np.arange(L)
    no = np.zeros((T, L), bool)
    ids = tuple(uuid.UUID(int=b) for b in range(L))
    return Rollout(
        header=LaneHeader("agent", ids, ("agent",), SPACE, spaces.Discrete(3)),
        obs=rng.integers(0, 256, (T, L, *SPACE.shape), np.uint8),
        action=rng.integers(0, 3, (T, L)),
        reward=rng.random((T, L), np.float32),
        terminated=no,
        truncated=no,
        valid=~no,
        failed=no,
        policy_version=np.zeros((T, L), np.int64),
        first_episode=np.zeros(L, np.int64),
        first_step=np.zeros(L, np.int64),
        successors=Successors(np.full(L, T - 1), lanes, rng.integers(0, 256, (L, *SPACE.shape), np.uint8)),
        logp=np.full((T, L), -1.1, np.float32),
        value=rng.random((T, L), np.float32) if with_value else None,
    )


def make_policy(**network):
    settings = NetworkSettings(**(NETWORK | network))
    return actor_critic(SPACE, spaces.Discrete(3), settings, torch.Generator().manual_seed(0))


def make_ppo(policy, **params):
    once = {"train_pi_iters": 1, "train_vf_iters": 1, "target_kl": None, "max_grad_norm": None}
    return PPO(policy, PPOParams(**(once | params)), np.random.default_rng(0), FASTEST)


@pytest.mark.parametrize("memory", [None, MemorySettings(sequence_length=3, size=6)])
def test_algorithms_made_by_hand_train_the_encoder_too(memory):
    policies = [make_policy(memory=memory) for _ in range(2)]
    params = PPOParams(train_pi_iters=2, train_vf_iters=2)
    seen = rollout(np.random.default_rng(0), with_value=True)
    for policy, backend in zip(policies, ([], [FASTEST]), strict=True):
        before = [each.clone() for each in policy.encoder_parameters()]
        PPO(policy, params, np.random.default_rng(0), *backend).update([copy.deepcopy(seen)], 0.0)
        assert all(not torch.equal(a, b) for a, b in zip(before, policy.encoder_parameters(), strict=True))
    for by_hand, of_runs in zip(*(policy.parameters() for policy in policies), strict=True):
        torch.testing.assert_close(by_hand, of_runs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("value_coef", [1.0, 0.25])
def test_ppos_gradient_is_that_of_the_sum_of_both_losses(value_coef):
    policy = make_policy()
    twin, seen = copy.deepcopy(policy), rollout(np.random.default_rng(0), with_value=True)
    ppo = make_ppo(policy, value_coef=value_coef, entropy_coef=0.02, normalize_advantages=False)
    ppo.update([seen], 0.0)
    assert type(ppo._update) is SharedEncoderUpdate

    obs = torch.from_numpy(seen.obs.reshape(-1, *SPACE.shape))
    advantage = torch.from_numpy(_advantages(twin, seen)).reshape(-1)
    target = advantage + torch.from_numpy(seen.value).reshape(-1)
    features = twin.features(obs)
    logp = twin.distribution(features)
    chosen = logp.gather(1, torch.from_numpy(seen.action).reshape(-1, 1))[:, 0]
    policy_loss = clipped_surrogate((chosen + 1.1).exp(), advantage, 0.2)
    entropy = -(logp.exp() * logp).sum(-1).mean()
    value_loss = 0.5 * (twin.normalized_value(features) - target).square().mean()
    (policy_loss - 0.02 * entropy + value_coef * value_loss).backward()

    for name, parameter in twin.named_parameters():
        scale = value_coef if name.startswith("critic") else 1.0  # the critic's own layers have their own optimiser
        found = dict(policy.named_parameters())[name].grad
        torch.testing.assert_close(found, parameter.grad / scale, rtol=1e-3, atol=1e-6, msg=name)


def _advantages(policy, seen):
    """GAE by its definition."""
    with torch.no_grad():
        last = policy.value(policy.features(torch.from_numpy(seen.successors.obs))).numpy()
    following = np.concatenate([seen.value[1:], last[None]])
    advantage, running = np.zeros((T, L), np.float32), np.zeros(L)
    for t in reversed(range(T)):
        running = seen.reward[t] + 0.99 * following[t] - seen.value[t] + 0.99 * 0.97 * running
        advantage[t] = running
    return advantage


def test_values_that_nobody_recorded_are_computed():
    seen = rollout(np.random.default_rng(0))
    policy = make_policy()
    evaluation = make_ppo(policy)._update.evaluate(seen, None)
    with torch.no_grad():
        expected = policy(torch.from_numpy(seen.obs.reshape(-1, *SPACE.shape)))[1].numpy().reshape(T, L)
    np.testing.assert_allclose(evaluation.value, expected, atol=1e-5)


def test_a_value_that_learns_alone_leaves_the_encoder():
    policy = make_policy()
    ppo = make_ppo(policy, train_pi_iters=1, train_vf_iters=4, target_kl=1e-9)  # exceeded at once
    before = copy.deepcopy(policy)
    metrics = ppo.update([rollout(np.random.default_rng(0))], 0.0)
    assert metrics["policy/gradient_steps"] == 0
    assert metrics["value/gradient_steps"] == 4
    assert parameter_hash(policy.image_encoder) == parameter_hash(before.image_encoder)
    assert parameter_hash(policy.actor) == parameter_hash(before.actor)
    assert parameter_hash(policy.critic) != parameter_hash(before.critic)


def test_images_stay_bytes_in_the_batch():
    policy = make_policy()
    ppo, seen = make_ppo(policy), rollout(np.random.default_rng(0))
    batch = ppo._prepare(seen, None)
    assert batch.features.obs.dtype == np.uint8
    assert np.shares_memory(batch.features.obs, seen.obs)


def test_a_recurrent_policys_losses_share_the_encoder():
    policy = make_policy(memory=MemorySettings(size=5, sequence_length=T))
    twin, seen = copy.deepcopy(policy), rollout(np.random.default_rng(0))
    ppo = make_ppo(policy, normalize_advantages=False)
    batch = ppo._prepare(seen, None)
    assert type(ppo._update) is RecurrentSharedEncoderUpdate
    ppo._update.gradients(batch, True, True)

    features = twin.features(torch.from_numpy(seen.obs.reshape(-1, *SPACE.shape))).reshape(T, L, -1)
    memory, logp, values = torch.zeros(L, twin.memory_width), [], []
    for t in range(T):
        distribution, value, memory = twin.step(features[t], None, memory)
        logp.append(distribution.gather(1, torch.from_numpy(seen.action[t])[:, None])[:, 0])
        values.append(value)
    order = np.concatenate([np.arange(L) + t * L for t in range(T)])
    advantage, target = (torch.zeros(T * L) for _ in range(2))
    rows = batch.sequences  # rows of the batch lie sequence after sequence
    for column, out in ((batch.advantage, advantage), (batch.target, target)):
        out[:] = torch.from_numpy(np.asarray(column).reshape(L, T).T.reshape(-1))
    assert len(order) == len(rows.first) * T
    loss = clipped_surrogate((torch.cat(logp) + 1.1).exp(), advantage, 0.2)
    (loss + 0.5 * (torch.cat(values) - target).square().mean()).backward()
    for name, parameter in twin.image_encoder.named_parameters():
        found = dict(policy.image_encoder.named_parameters())[name].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=1e-6, msg=name)


PARAMS = {SAC: SACParams, TD3: TD3Params, DDPG: DDPGParams}
ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)


def make_learner(kind, **params):
    own = PARAMS[kind](**({"tau": 0.5} | params))
    head = kind.make_head(ACTIONS, own)
    policy = Policy(SPACE, head, NetworkSettings(**NETWORK), torch.Generator().manual_seed(0), shares_encoder=True)
    return kind({"agent": policy}, {"agent": 1}, own, torch.Generator().manual_seed(1), LocalView)


def transitions(rng, num_rows=6):
    shape = (num_rows, 1)
    own = GroupTransitions(
        obs=rng.integers(0, 256, (*shape, *SPACE.shape), np.uint8),
        action=rng.uniform(-1, 1, (*shape, 2)).astype(np.float32),
        reward=rng.random(shape, np.float32),
        next_obs=rng.integers(0, 256, (*shape, *SPACE.shape), np.uint8),
        discount=np.full(shape, 0.9, np.float32),
        valid=np.ones(shape, bool),
        next_valid=np.ones(shape, bool),
    )
    return JointTransitions({"agent": own}, np.arange(num_rows), np.ones(num_rows, np.float32))


@pytest.mark.parametrize("kind", PARAMS)
def test_the_critics_loss_alone_trains_the_encoder(kind):
    algorithm = make_learner(kind)
    learner = algorithm.groups["agent"]
    batch = algorithm.batch(transitions(np.random.default_rng(0)))
    before = parameter_hash(learner.policy.image_encoder)
    algorithm.update_policy("agent", batch)
    assert parameter_hash(learner.policy.image_encoder) == before
    target = torch.zeros(6, 1)
    algorithm.update_critics("agent", batch, target, torch.ones(6, 1))
    assert parameter_hash(learner.policy.image_encoder) != before


@pytest.mark.parametrize("kind", PARAMS)
def test_the_critics_gradient_is_torchs(kind):
    algorithm = make_learner(kind)
    learner, rows = algorithm.groups["agent"], transitions(np.random.default_rng(0))
    encoder, critics = copy.deepcopy(learner.policy.image_encoder), copy.deepcopy(learner.q)
    own = rows.groups["agent"]
    algorithm.update_critics("agent", algorithm.batch(rows), torch.ones(6, 1), torch.ones(6, 1))

    embedding = encoder.of_leaves([torch.from_numpy(own.obs[:, 0])])
    values = critics(torch.cat([embedding, torch.from_numpy(own.action[:, 0])], -1))
    (0.5 * (values - 1.0).square().mean(1).sum()).backward()
    for name, parameter in encoder.named_parameters():
        found = dict(learner.policy.image_encoder.named_parameters())[name].grad
        torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", PARAMS)
def test_targets_see_through_an_encoder_of_their_own_that_follows(kind):
    algorithm = make_learner(kind)
    learner = algorithm.groups["agent"]
    rng = np.random.default_rng(0)
    first = [p.detach().clone() for p in learner.target_encoder.parameters()]
    for _ in range(2):
        algorithm.update(transitions(rng))
    newest = list(learner.policy.image_encoder.parameters())
    moved = list(learner.target_encoder.parameters())
    assert not any(p.requires_grad for p in moved)
    assert any(not torch.equal(a, b) for a, b in zip(first, moved, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(newest, moved, strict=True))
    if learner.target_policy is not None:
        assert learner.target_policy.image_encoder is learner.target_encoder
    learner.tau = 1.0
    learner.soft_update()
    assert all(torch.equal(a, b) for a, b in zip(newest, moved, strict=True))


def test_every_parameter_belongs_to_one_optimiser():
    learner = make_learner(SAC).groups["agent"]
    actor, critic = learner.policy.actor_parameters(), learner.critic_parameters()
    assert not {id(p) for p in actor} & {id(p) for p in critic}
    assert {id(p) for p in learner.policy.parameters()} < {id(p) for p in [*actor, *critic]}


def test_a_shift_moves_whole_images_and_repeats_their_border():
    layout = image_layout((2, 24, 20))
    shift = RandomShift(spaces.Box(0, 255, (2, 24, 20), np.uint8), [layout], 4)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 1, 2, 24, 20), np.uint8)
    shifted = shift(images, rng)
    moves = set()
    for image, moved in zip(images[:, 0], shifted[:, 0], strict=True):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="edge")
        found = [(y, x) for y in range(9) for x in range(9) if np.array_equal(padded[:, y : y + 24, x : x + 20], moved)]
        assert len(found) == 1
        moves.add(found[0])
    assert len(moves) > 20
    assert np.array_equal(shift(images, np.random.default_rng(7)), shift(images, np.random.default_rng(7)))


def test_a_shift_is_drawn_from_the_algorithms_generator():
    one, other = (make_learner(SAC, random_shift=2) for _ in range(2))
    rows = transitions(np.random.default_rng(0))
    for _ in range(2):
        one.update(rows)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    other.groups["agent"].policy.load_state_dict(copy.deepcopy(one.groups["agent"].policy.state_dict()))
    for algorithm in (one, other):
        algorithm.update(rows)
    assert parameter_hash(one.groups["agent"].policy) == parameter_hash(other.groups["agent"].policy)
    assert one.rng.bit_generator.state == other.rng.bit_generator.state


def test_a_shift_without_images_is_refused():
    params = SACParams(random_shift=4)
    space = spaces.Box(-1, 1, (3,), np.float32)
    policy = Policy(space, SAC.make_head(ACTIONS, params), NetworkSettings(), torch.Generator().manual_seed(0))
    with pytest.raises(ConfigError, match="random_shift moves images"):
        SAC({"agent": policy}, {"agent": 1}, params, torch.Generator(), LocalView)


def test_the_encoders_gradient_is_bit_for_bit_that_of_torchs_backward():
    layer = torch.nn.Linear(5, 7)
    x, given = torch.randn(11, 5), torch.randn(11, 7)
    layer(x).relu().backward(given)
    expected = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    step = EncodedStep(trains_encoder=True)
    step.seen(lambda: layer(x).relu())
    step.differentiate_encoder(given)
    assert all(torch.equal(p.grad, own) for p, own in zip(layer.parameters(), expected, strict=True))


WITHOUT_SYMPY = """
import sys, numpy as np
from test_shared_encoders import make_policy, make_ppo, rollout
make_ppo(make_policy()).update([rollout(np.random.default_rng(0))], 0.0)
assert "sympy" not in sys.modules
"""


def test_an_update_does_not_wait_for_sympy():
    """torch imports it, in half a second, where `backward` is given a gradient."""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", WITHOUT_SYMPY], check=True, env=path)
