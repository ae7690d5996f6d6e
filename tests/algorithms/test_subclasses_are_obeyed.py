"""What is derived from RelayRL's own classes, or changed in place, is obeyed: no faster way stands in for it."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_off_policy import make_learner, random_transitions
from test_ppo import make_ppo, rollout
from torch import nn

from relayrl.accelerator.live_actor import live_actor
from relayrl.accelerator.mlp_actor import MlpActor
from relayrl.accelerator.on_policy_kernels import KernelUpdate
from relayrl.accelerator.replay_updates import accelerated
from relayrl.algorithms.critics.critic_views import LocalView
from relayrl.algorithms.losses import ClippedSurrogate, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.params import TD3Params
from relayrl.algorithms.td3 import TD3
from relayrl.algorithms.updates.torch_update import TorchUpdate
from relayrl.compiled import loader
from relayrl.errors import ExportError
from relayrl.models.acting.torch_actor import TorchActor
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.heads.box_heads import SquashedGaussianHead
from relayrl.models.heads.discrete_heads import CategoricalHead
from relayrl.models.network_settings import Activation
from relayrl.models.networks.mlp import MLP, is_plain
from relayrl.models.policy import ActorCritic, Policy, parameter_hash
from relayrl.runtime.requests.policy_model import load_model

OBS = np.random.default_rng(5).normal(size=(6, 3)).astype(np.float32)


def learned(ppo) -> str:
    """The parameters after one update."""
    rng = np.random.default_rng(3)
    shape = (8, 4)
    space = ppo.policy.action_space
    space.seed(0)
    action = np.stack([space.sample() for _ in range(32)]).reshape(*shape, *space.shape)
    obs, reward = rng.normal(size=(*shape, 3)).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    ppo.update([rollout(obs, action, reward)], 0.0)
    return parameter_hash(ppo.policy)


def objective(loss) -> Objective:
    return Objective(loss, entropy_coef=0.0)


class OppositeLoss(ClippedSurrogate):
    def loss(self, log_ratio, advantage):
        return -super().loss(log_ratio, advantage)


def test_a_loss_is_differentiated_as_it_is_written():
    moved = []
    for loss in (ClippedSurrogate(0.2), OppositeLoss(0.2)):
        ppo = make_ppo(train_pi_iters=1, train_vf_iters=1, target_kl=None)
        ppo.make_loss = lambda params, loss=loss: loss
        before = ppo.actor_optimizer.vector.clone()
        learned(ppo)
        moved.append(ppo.actor_optimizer.vector - before)
    # Adam's first step is the sign of the gradient, so an opposite loss moves everything as far the other way.
    torch.testing.assert_close(moved[1], -moved[0], rtol=0.01, atol=1e-5)
    assert float(moved[0].abs().max()) > 0


def test_an_objective_says_itself_what_the_critic_minimises():
    class NoValueLoss(Objective):
        def value_loss(self, value, old_value, target):
            return 0.0 * value.sum()

    ppo = make_ppo()
    ppo.objective = lambda: NoValueLoss(ClippedSurrogate(0.2), 0.0)
    before = parameter_hash(ppo.policy.critic)
    learned(ppo)
    assert parameter_hash(ppo.policy.critic) == before


def test_an_objective_says_itself_when_the_policy_has_moved_too_far():
    class AtOnce(Objective):
        def is_exceeded_by(self, kl):
            return True

    ppo = make_ppo()
    ppo.objective = lambda: AtOnce(ClippedSurrogate(0.2), 0.0)
    before = parameter_hash(ppo.policy.actor)
    learned(ppo)
    assert parameter_hash(ppo.policy.actor) == before


@pytest.mark.parametrize("is_patched", [False, True])
def test_an_optimiser_takes_its_own_steps(is_patched):
    class Standing(FlatAdam):
        def step(self):
            return 0.0

    ppo = make_ppo()
    if is_patched:
        ppo.actor_optimizer.step = lambda: 0.0
    else:
        ppo.actor_optimizer = Standing(ppo.policy.actor_parameters(), 0.1, None)
    before = parameter_hash(ppo.policy.actor), parameter_hash(ppo.policy.critic)
    learned(ppo)
    assert parameter_hash(ppo.policy.actor) == before[0]
    assert parameter_hash(ppo.policy.critic) != before[1]


class Halved(MLP):
    def forward(self, features):
        return 0.5 * super().forward(features)


class HalvedLinear(nn.Linear):
    def forward(self, features):
        return 0.5 * super().forward(features)


def derived(network) -> None:
    network.__class__ = Halved


def patched(network) -> None:
    network.forward = lambda features: 0.5 * MLP.forward(network, features)


def hooked(network) -> None:
    network.register_forward_hook(lambda module, given, outputs: 0.5 * outputs)


def hooked_within(network) -> None:
    network[0].register_forward_pre_hook(lambda module, given: (0.5 * given[0],))


def other_activation(network) -> None:
    network[1] = nn.SiLU()


def other_layer(network) -> None:
    network[2].__class__ = HalvedLinear


def normed(network) -> None:
    torch.nn.utils.parametrizations.weight_norm(network[0]).parametrizations.weight.original0.data.mul_(0.5)


@pytest.mark.parametrize("change", [derived, patched, hooked, hooked_within, other_activation, other_layer, normed])
def test_a_network_acts_learns_and_is_exported_as_it_is(change, tmp_path):
    plain, ppo = make_ppo(target_kl=None), make_ppo(target_kl=None)
    change(ppo.policy.actor)
    if change is not normed:  # which replaces parameters, so that the optimiser would have to be made after it
        assert learned(ppo) != learned(plain)
        assert type(ppo._update) is TorchUpdate
        assert isinstance(plain._update, KernelUpdate)
    want = TorchActor(ppo.policy).distribution(OBS)
    assert not np.allclose(want, TorchActor(plain.policy).distribution(OBS))
    np.testing.assert_array_equal(live_actor(ppo.policy).distribution(OBS), want)
    np.testing.assert_allclose(load_model(ppo.policy).actor.distribution(OBS), want, rtol=1e-6)
    if change is not patched:  # which a copy calls on the original
        spaces_ = (ppo.policy.observation_space, ppo.policy.action_space)
        metadata = PolicyMetadata("test", "ppo", "agent", 0, False, *spaces_)
        file = export_policy(ppo.policy, metadata, tmp_path / "model.onnx", ExportFormat.ONNX)
        np.testing.assert_allclose(ExportedActor(file).distribution(OBS), want, rtol=1e-4, atol=1e-5)
        assert isinstance(load_model(file).actor, ExportedActor)


def test_what_was_not_changed_keeps_its_faster_twin():
    assert isinstance(live_actor(make_ppo().policy), MlpActor)
    assert is_plain(copy.deepcopy(make_ppo().policy.actor))


def test_a_method_exchanged_in_the_class_is_obeyed(monkeypatch):
    network = make_ppo().policy.actor
    assert is_plain(network)
    monkeypatch.setattr(MLP, "forward", Halved.forward)
    assert not is_plain(network)


@pytest.mark.parametrize("name", ["actor", "critic"])
def test_a_frozen_parameter_stays_as_it_is(name):
    ppo = make_ppo()
    network = getattr(ppo.policy, name)
    network[0].weight.requires_grad_(False)
    before = network[0].weight.clone(), network[2].weight.clone()
    learned(ppo)
    torch.testing.assert_close(network[0].weight, before[0], rtol=0, atol=0)
    assert not torch.equal(network[2].weight, before[1])


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_frozen_networks_stay_as_they_are_in_replay_too(algo):
    learner = make_learner(algo)
    group = learner.groups["agent"]
    group.policy.actor.requires_grad_(False)
    group.q.critics[0][0].weight.requires_grad_(False)
    before = parameter_hash(group.policy), group.q.critics[0][0].weight.clone(), group.q.critics[0][2].weight.clone()
    for _ in range(2):
        learner.update(random_transitions(learner))
    assert parameter_hash(group.policy) == before[0]
    assert torch.equal(group.q.critics[0][0].weight, before[1])
    assert not torch.equal(group.q.critics[0][2].weight, before[2])


class Sharp(CategoricalHead):
    """Three times the logits, and never the first action."""

    def parameters(self, outputs, mask):
        return super().parameters(3.0 * outputs, mask)

    def sample(self, parameters, rng):
        return np.full(len(parameters), self.start + 1)

    def mode(self, parameters):
        return np.full(len(parameters), self.start + 1)


def test_a_head_acts_and_learns_as_it_is_and_cannot_be_exported_as_another(tmp_path):
    plain, ppo = make_ppo(target_kl=None), make_ppo(target_kl=None)
    ppo.policy.head = Sharp(ppo.policy.action_space)
    rng = np.random.default_rng(0)
    for actions in (live_actor(ppo.policy).act(OBS, None, rng), live_actor(ppo.policy).act_greedily(OBS)):
        assert actions.tolist() == [2] * len(OBS)
    assert load_model(ppo.policy).actor.act(OBS, None, rng).tolist() == [2] * len(OBS)
    assert learned(ppo) != learned(plain)
    metadata = PolicyMetadata("test", "ppo", "agent", 0, False, ppo.policy.observation_space, ppo.policy.action_space)
    with pytest.raises(ExportError, match=r"Sharp\.mode\(\) chooses other actions"):
        export_policy(ppo.policy, metadata, tmp_path / "model.onnx", ExportFormat.ONNX)


def after_replay(learner) -> str:
    """The parameters after two updates, as a trainer makes them."""
    twin = accelerated(learner)
    for _ in range(2):
        (learner if twin is None else twin).update(random_transitions(learner))
    return parameter_hash(learner.groups["agent"].policy)


def test_replay_learns_with_the_head_that_it_is_given():
    class Half(SquashedGaussianHead):
        def rsample(self, parameters, noise):
            action, logp = super().rsample(parameters, noise)
            return 0.5 * action, logp

    plain, half = make_learner("sac"), make_learner("sac")
    half.groups["agent"].policy.head.__class__ = Half
    assert accelerated(plain) is not None
    assert accelerated(half) is None
    assert after_replay(half) != after_replay(plain)


def test_replay_learns_with_the_losses_of_a_subclass():
    class Opposite(TD3):
        def policy_loss(self, group, q, logp, share):
            return -super().policy_loss(group, q, logp, share)

    moved = []
    for kind in (TD3, Opposite):
        learner = make_learner(kind, params=TD3Params(policy_frequency=1))
        before = learner.groups["agent"].actor_optimizer.vector.clone()
        assert (accelerated(learner) is None) == (kind is Opposite)
        learner.update(random_transitions(learner))
        moved.append(learner.groups["agent"].actor_optimizer.vector - before)
    # Adam's first step is the sign of the gradient, so an opposite loss moves everything as far the other way.
    torch.testing.assert_close(moved[1], -moved[0], rtol=0.01, atol=1e-5)
    assert float(moved[0].abs().max()) > 0


@pytest.mark.parametrize("change", [derived, patched, hooked, hooked_within, other_activation, other_layer])
@pytest.mark.parametrize("whose", ["actor", "q", "target_q"])
def test_replay_learns_with_networks_as_they_are(change, whose):
    plain, changed = make_learner("sac"), make_learner("sac")
    group = changed.groups["agent"]
    change(group.policy.actor if whose == "actor" else getattr(group, whose).critics[0])
    assert accelerated(changed) is None
    assert after_replay(changed) != after_replay(plain)


def test_replay_without_kernels_runs_the_reference(monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, loader.OFF)
    assert accelerated(make_learner("sac")) is None


def test_a_policy_sees_what_its_own_features_say():
    class Blind(ActorCritic):
        def features(self, obs):
            return torch.zeros_like(super().features(obs))

    ppo = make_ppo()
    ppo.policy.__class__ = Blind
    distribution = live_actor(ppo.policy).distribution(OBS)
    np.testing.assert_array_equal(distribution, np.tile(distribution[:1], (len(OBS), 1)))
    assert type(ppo._update) is TorchUpdate

    class BlindPolicy(Policy):
        def features(self, obs):
            return torch.zeros_like(super().features(obs))

    learner = make_learner("td3")
    learner.groups["agent"].policy.__class__ = BlindPolicy
    assert accelerated(learner) is None
    assert not learner.batch(random_transitions(learner))["agent"].features.any()


def test_a_critic_view_shows_what_it_shows():
    class Blind(LocalView):
        def inputs(self, group, features, actions, state=None, own=None):
            return torch.zeros_like(super().inputs(group, features, actions, state, own))

    learners = [make_learner("td3", view=view) for view in (LocalView, Blind)]
    assert accelerated(learners[1]) is None
    for learner in learners:
        learner.update(random_transitions(learner))
    first = [learner.groups["agent"].critic_optimizer.gradient[: 8 * 5] for learner in learners]
    assert float(first[0].abs().max()) > 0
    assert float(first[1].abs().max()) == 0


@pytest.mark.parametrize(("hidden", "space"), [((4,) * 20, spaces.Discrete(2)), ((4,), spaces.MultiDiscrete([2] * 70))])
def test_networks_and_choices_beyond_the_kernels_are_left_to_the_reference(hidden, space):
    sizes = (3, *hidden, space.n if isinstance(space, spaces.Discrete) else 140)
    ppo = make_ppo(space, activation=Activation.RELU)
    ppo.policy.actor = MLP(sizes, Activation.RELU, 0.01, torch.Generator().manual_seed(0))
    ppo.actor_optimizer = FlatAdam(ppo.policy.actor_parameters(), 1e-3, 0.5)
    assert len(live_actor(ppo.policy).act(OBS, None, np.random.default_rng(0))) == len(OBS)
    learned(ppo)
    assert type(ppo._update) is TorchUpdate
