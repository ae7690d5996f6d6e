"""PPO: the update does what its docstring numbers."""

import uuid

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.on_policy_params import PPOParams, Schedule
from relayrl.algorithms.ppo import PPO
from relayrl.algorithms.updates.torch_update import Batch
from relayrl.compiled import loader
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.errors import ConfigError, TrainingDivergedError
from relayrl.models.network_settings import Activation, NetworkSettings
from relayrl.models.policy import ActorCritic, parameter_hash

OBSERVATIONS = spaces.Box(-1, 1, (3,))
ACTIONS = {
    "discrete": spaces.Discrete(4, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
}


def make_ppo(
    action_space=None, *, activation=Activation.TANH, normalize=False, backend: Backend = FASTEST, **params
) -> PPO:
    generator = torch.Generator().manual_seed(0)
    network = NetworkSettings(hidden_sizes=(8, 8), activation=activation, normalize_observations=normalize)
    policy = ActorCritic(OBSERVATIONS, action_space or ACTIONS["discrete"], network, generator)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return PPO(policy, PPOParams(**params), np.random.default_rng(0), backend)


def random_batch(policy: ActorCritic, rows: int = 64) -> Batch:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(rows, 3)).astype(np.float32)
    mask = None
    if policy.head.mask_width is not None:
        mask = rng.random((rows, policy.head.mask_width)) < 0.7
        mask[:, [0, -1]] = True
    with torch.no_grad():
        parameters = policy.distribution(torch.from_numpy(features), None if mask is None else torch.from_numpy(mask))
    action = policy.head.sample(parameters.numpy(), rng)
    logp = policy.head.log_prob_numpy(parameters.numpy(), action)
    noise = [rng.normal(size=rows).astype(np.float32) for _ in range(4)]
    return Batch(features, action, mask, (logp + 0.3 * noise[0]).astype(np.float32), noise[1], noise[2], noise[3])


@pytest.mark.parametrize("space", ACTIONS)
def test_gradients_reach_every_parameter_and_begin_anew(space):
    update = make_ppo(ACTIONS[space], entropy_coef=0.1, target_kl=None, backend=REFERENCE)._update
    batch = random_batch(update.policy)
    results = []
    for _ in range(2):
        update.policy_gradient(batch)
        update.value_gradient(batch)
        results.append({name: p.grad.clone() for name, p in update.policy.named_parameters()})
    for name, gradient in results[0].items():
        assert float(gradient.abs().max()) > 0, name
        assert torch.equal(gradient, results[1][name]), name


def test_no_gradient_beyond_the_kl_limit():
    ppo = make_ppo(target_kl=1e-4, backend=REFERENCE)
    assert ppo._update.policy_gradient(random_batch(ppo.policy)) is None
    assert all(float(p.grad.abs().max()) == 0 for p in ppo.policy.actor_parameters())


def rollout(obs, action, reward, *, terminated=None, truncated=None, valid=None, successors=None, **extra) -> Rollout:
    T, L = reward.shape
    nothing = np.zeros((T, L), bool)
    header = LaneHeader("agent", tuple(uuid.uuid4() for _ in range(L)), ("agent",), OBSERVATIONS, ACTIONS["discrete"])
    if successors is None:
        rng = np.random.default_rng(9)
        last = rng.normal(size=(L, 3)).astype(np.float32)
        successors = Successors(np.full(L, T - 1), np.arange(L), last)
    return Rollout(
        header=header,
        obs=obs,
        action=action,
        reward=reward,
        terminated=nothing if terminated is None else terminated,
        truncated=nothing if truncated is None else truncated,
        valid=~nothing if valid is None else valid,
        failed=nothing,
        policy_version=np.zeros((T, L), np.int64),
        first_episode=np.zeros(L, np.int64),
        first_step=np.zeros(L, np.int64),
        successors=successors,
        **extra,
    )


def random_rollout(T: int = 8, L: int = 4, **extra) -> Rollout:
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(T, L, 3)).astype(np.float32)
    return rollout(obs, rng.integers(1, 5, (T, L)), rng.normal(size=(T, L)).astype(np.float32), **extra)


def test_passes_and_minibatches_are_counted():
    ppo = make_ppo(train_pi_iters=3, train_vf_iters=5, num_minibatches=4, target_kl=None)
    metrics = ppo.update([random_rollout()], 0.0)
    assert metrics["policy/gradient_steps"] == 12
    assert metrics["value/gradient_steps"] == 20


def test_the_policy_stops_at_the_kl_limit_and_the_value_goes_on():
    ppo = make_ppo(train_pi_iters=80, train_vf_iters=80, pi_lr=1e-2, target_kl=0.01)
    metrics = ppo.update([random_rollout()], 0.0)
    assert metrics["policy/gradient_steps"] < 80
    assert metrics["value/gradient_steps"] == 80
    assert metrics["policy/kl"] <= 1.5 * 0.01


def test_the_first_ratio_is_one_when_log_probabilities_were_not_recorded():
    ppo = make_ppo(train_pi_iters=1, train_vf_iters=1)
    assert ppo.update([random_rollout()], 0.0)["policy/kl"] == pytest.approx(0.0, abs=1e-9)


def test_recorded_log_probabilities_are_used():
    ppo = make_ppo(train_pi_iters=1, train_vf_iters=1, target_kl=None)
    stale = np.full((8, 4), -3.0, np.float32)
    assert ppo.update([random_rollout(logp=stale)], 0.0)["policy/kl"] > 0.1


def test_invalid_rows_change_nothing():
    hashes = []
    for garbage in (0.0, 1e6):
        ppo = make_ppo(train_pi_iters=2, train_vf_iters=2)
        data = random_rollout()
        valid = np.ones((8, 4), bool)
        valid[3, 1] = False
        obs = data.obs.copy()
        obs[3, 1] = garbage
        ppo.update([rollout(obs, data.action, data.reward, valid=valid, successors=data.successors)], 0.0)
        hashes.append(parameter_hash(ppo.policy))
    assert hashes[0] == hashes[1]


def test_two_rollouts_are_trained_on_together():
    ppo = make_ppo(train_pi_iters=1, train_vf_iters=1, normalize_advantages=False)
    one = random_rollout()
    batch_sizes = []
    original = ppo._update.begin

    def spy(batch, plan):
        batch_sizes.append(plan.minibatch_rows)
        return original(batch, plan)

    ppo._update.begin = spy
    ppo.update([one, one], 0.0)
    assert batch_sizes == [64]


def test_linear_schedule_scales_both_rates():
    ppo = make_ppo(lr_schedule=Schedule.LINEAR, pi_lr=4e-4, vf_lr=8e-4, train_pi_iters=1, train_vf_iters=1)
    ppo.update([random_rollout()], 0.75)
    assert ppo.actor_optimizer.lr == pytest.approx(1e-4)
    assert ppo.critic_optimizer.lr == pytest.approx(2e-4)


def test_normalization_moves_only_after_the_update():
    ppo = make_ppo(normalize=True, train_pi_iters=1, train_vf_iters=1)
    data = random_rollout()
    metrics = ppo.update([data], 0.0)
    assert metrics["policy/kl"] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(ppo.policy.normalizer.mean, data.obs.reshape(-1, 3).mean(0), rtol=1e-5, atol=1e-7)


def test_normalized_returns_leave_values_in_units_of_reward():
    ppo = make_ppo(normalize_returns=True, train_pi_iters=1, train_vf_iters=400, vf_lr=1e-2, gamma=0.0, target_kl=None)
    data = random_rollout()
    big = rollout(data.obs, data.action, np.full((8, 4), 500.0, np.float32) + data.reward, successors=data.successors)
    for _ in range(5):
        ppo.update([big], 0.0)
    value = ppo._update.value(ppo._update.features(data.obs.reshape(-1, 3)))
    assert float(np.abs(value - 500.0).mean()) < 2.0


@pytest.mark.parametrize("kernels", ["", "off"], ids=["compiled", "torch"])
def test_values_are_clipped_in_the_unit_that_the_critic_learns_in(kernels, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, kernels)
    ppo = make_ppo(
        normalize_returns=True, value_clip=0.1, train_pi_iters=1, train_vf_iters=1, num_minibatches=1, gamma=0.0
    )
    with torch.no_grad():
        for parameter in ppo.policy.critic_parameters():
            parameter.zero_()
        ppo.policy.critic_parameters()[-1].fill_(0.5)  # the critic's output, whatever it sees
    ppo.policy.return_normalizer.merge(torch.tensor([10.0]), torch.tensor([28.0]), 32)
    data = random_rollout()
    reward = np.repeat(np.array([0.0, 20.0], np.float32), 16).reshape(8, 4)
    metrics = ppo.update([rollout(data.obs, data.action, reward, successors=data.successors)], 0.0)
    # The variance becomes (28 + 100) / 2 = 8², the targets (0 − 10) / 8 and (20 − 10) / 8. The critic has not moved yet, so
    # that nothing is clipped: ½ · ½ · ((0.5 + 1.25)² + (0.5 − 1.25)²).
    assert metrics["value/loss"] == pytest.approx(0.90625, abs=1e-5)


def test_a_loss_that_is_not_finite_stops_the_run():
    ppo = make_ppo(normalize_advantages=False)
    data = random_rollout()
    reward = data.reward.copy()
    reward[0, 0] = np.nan
    with pytest.raises(TrainingDivergedError, match="check the rewards"):
        ppo.update([rollout(data.obs, data.action, reward, successors=data.successors)], 0.0)


def test_state_round_trip_continues_bit_for_bit():
    first, second = (make_ppo(num_minibatches=4, train_pi_iters=4, train_vf_iters=4) for _ in range(2))
    data = random_rollout()
    first.update([data], 0.0)
    second.policy.load_state_dict(first.policy.state_dict())
    second.load_state_dict(first.state_dict())
    for ppo in (first, second):
        ppo.update([data], 0.5)
    assert parameter_hash(first.policy) == parameter_hash(second.policy)


def test_defaults_are_the_documented_ones():
    expected = {
        "gamma": 0.99,
        "lam": 0.97,
        "clip_ratio": 0.2,
        "pi_lr": 3e-4,
        "vf_lr": 1e-3,
        "train_pi_iters": 80,
        "train_vf_iters": 80,
        "target_kl": 0.01,
        "traj_per_epoch": 8,
    }
    assert {name: getattr(PPOParams(), name) for name in expected} == expected


def test_a_block_on_which_nobody_acted_changes_nothing():
    ppo = make_ppo(num_minibatches=2)
    before = parameter_hash(ppo.policy)
    assert ppo.update([random_rollout(valid=np.zeros((8, 4), bool))], 0.0) == {}
    assert parameter_hash(ppo.policy) == before


def test_an_actor_and_a_critic_that_share_layers_are_refused():
    trunk = torch.nn.Linear(3, 8)

    def kernels(encoder, num_outputs, output_gain, generator):
        return torch.nn.Sequential(trunk, torch.nn.Tanh(), torch.nn.Linear(8, num_outputs))

    policy = ActorCritic(OBSERVATIONS, ACTIONS["discrete"], NetworkSettings(), torch.Generator(), kernels=kernels)
    with pytest.raises(ConfigError, match="share a parameter"):
        PPO(policy, PPOParams(), np.random.default_rng(0))
