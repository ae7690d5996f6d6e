"""Gradient steps of DDPG, TD3 and SAC with kernels for the networks, in Triton's interpreter, beside the algorithms' own."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from relayrl.accelerator.gpu.replay.fused_evaluation import FusedEvaluation, fuse_known
from relayrl.accelerator.gpu.replay.fused_heads import chosen, is_known_head
from relayrl.accelerator.gpu.replay.gather_kernel import gather
from relayrl.algorithms.td3 import TD3
from relayrl.algorithms.updates.replay_actor_critic import Evaluation
from relayrl.engines.device.resident_replay import drawn
from relayrl.engines.device.resident_run import build_resident
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.models.heads.box_heads import DeterministicHead, SquashedGaussianHead

SETTINGS: dict[str, Any] = {
    "device": "cpu:0",
    "environment.num_envs": 6,
    "params.update_interval": 60,
    "params.learning_starts": 1,
    "params.buffer_size": 600,
    "params.batch_size": 64,
    "network.hidden_sizes": (24, 20),
    "network.activation": "relu",
}
CASES = [
    ("native:Pendulum", "ddpg", {}),
    ("native:Pendulum", "td3", {}),
    ("native:Pendulum", "sac", {}),
    ("native:CartPole", "sac", {}),
    ("native:simple_spread", "matd3", {"environment.options.continuous_actions": True}),
    ("native:simple_speaker_listener", "isac", {"environment.options.continuous_actions": True}),
]


def make_parts(env, algo, more=()):
    parts: Any = build_resident(build_run_settings(env, None, {"algo": algo}, [*SETTINGS.items(), *dict(more).items()]))
    return parts


def learned(parts, num_steps):
    """All networks after gradient steps, with the metrics of the last one."""
    trainer = parts.trainer
    trainer.receive(parts.collector.fill(10))
    algorithm = trainer.algorithm
    for _ in range(num_steps):
        metrics, errors = algorithm.begin(trainer.replay.sample_on_device(64, gamma=0.9))
    found = {}
    for name, learner in algorithm.groups.items():
        for part, module in {"policy": learner.policy, **learner.modules()}.items():
            found |= {f"{name}/{part}/{key}": tensor.clone() for key, tensor in module.state_dict().items()}
    return found, {name: float(number) for name, number in metrics.items()}, errors


@pytest.mark.parametrize(("env", "algo", "more"), CASES)
def test_steps_equal_the_algorithms_own(env, algo, more):
    reference, fused = make_parts(env, algo, more), make_parts(env, algo, more)
    assert fuse_known(fused.trainer.algorithm)
    want, want_metrics, want_errors = learned(reference, 4)
    got, got_metrics, errors = learned(fused, 4)
    assert want.keys() == got.keys()
    for key, tensor in want.items():
        torch.testing.assert_close(got[key], tensor, rtol=2e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
    torch.testing.assert_close(errors, want_errors, rtol=2e-3, atol=1e-3)
    assert got_metrics == pytest.approx(want_metrics, rel=2e-3, abs=1e-4)


def first_gradients(parts):
    """The critics' and the policy's first gradients."""
    trainer = parts.trainer
    trainer.receive(parts.collector.fill(10))
    trainer.algorithm.num_updates = 1  # the policy's turn is next
    trainer.algorithm.begin(trainer.replay.sample_on_device(64, gamma=0.9))
    (learner,) = trainer.algorithm.groups.values()
    return learner.critic_optimizer.gradient.clone(), learner.actor_optimizer.gradient.clone()


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_first_gradients_are_the_references_to_rounding(algo):
    reference, fused = make_parts("native:Pendulum", algo), make_parts("native:Pendulum", algo)
    assert fuse_known(fused.trainer.algorithm)
    for want, got in zip(first_gradients(reference), first_gradients(fused), strict=True):
        assert float((got - want).abs().max() / want.abs().max()) < 1e-4


@pytest.mark.parametrize(("env", "algo", "more"), [CASES[0], CASES[3], CASES[4]])
def test_transitions_are_those_of_the_replay(env, algo, more):
    trainer = (parts := make_parts(env, algo, more)).trainer
    trainer.receive(parts.collector.fill(10))
    replay = trainer.replay
    draws = torch.rand(70, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for columns in replay._groups.values():
        columns["terminated"].copy_(torch.rand(columns["terminated"].shape) < 0.5)
        (want_rows, want), (rows, got) = (way(columns, draws, replay._num_rows, 0.9) for way in (drawn, gather))
        torch.testing.assert_close(rows, want_rows, rtol=0, atol=0)
        assert want.keys() == got.keys()
        for name, column in want.items():
            torch.testing.assert_close(got[name], column, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("head_class", "num_actions"), [(SquashedGaussianHead, 1), (SquashedGaussianHead, 3), (DeterministicHead, 2)]
)
def test_heads_choose_as_their_methods_and_differentiate_so(head_class, num_actions):
    generator = torch.Generator().manual_seed(0)
    head = head_class(spaces.Box(-2.0, 3.0, (num_actions,), np.float32))
    outputs = 3.0 * torch.randn(300, head.num_outputs, generator=generator)
    if head_class is SquashedGaussianHead:
        outputs[:20, num_actions:] = 4.0  # above the bound, where no gradient goes on
        outputs[20:40, :num_actions] = 30.0  # tanh rounds to 1
    noise = torch.randn(300, num_actions, generator=generator)
    weight = torch.randn(300, num_actions, generator=generator), torch.randn(300, generator=generator)
    found = []
    for is_kernel in (True, False):
        given = (outputs if is_kernel else outputs.double()).clone().requires_grad_()
        if is_kernel:
            assert is_known_head(head)
            action, logp = chosen(head, given, noise)
        else:
            scales = {name: torch.from_numpy(numbers).double() for name, numbers in head.scales.items()}
            parameters = head.parameters(head.scaled(given, scales), None)
            action, logp = head.rsample(parameters, noise.double())
        total = (action * weight[0]).sum() + (logp * weight[1]).sum()
        (gradient,) = torch.autograd.grad(total, given)
        found.append((action.detach().double(), logp.detach().double(), gradient.double()))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


class NoisyPolicyTurn(TD3):
    pass


def test_what_is_not_exactly_known_keeps_the_reference():
    def subclass(algorithm, learner):
        algorithm.__class__ = NoisyPolicyTurn

    def own_learner(algorithm, learner):
        learner.__class__ = type("Own", (type(learner),), {})

    def own_policy(algorithm, learner):
        learner.policy.__class__ = type("Own", (type(learner.policy),), {})

    def own_layer(algorithm, learner):
        learner.q.critics[0][0].__class__ = type("Own", (nn.Linear,), {})

    def hook(algorithm, learner):
        learner.policy.actor.register_forward_hook(lambda *_: None)

    def hook_of_parameter(algorithm, learner):
        learner.q.critics[1][0].weight.register_hook(lambda gradient: gradient)

    def hook_of_target(algorithm, learner):
        learner.target_q.register_forward_pre_hook(lambda *_: None)

    def frozen(algorithm, learner):
        learner.policy.actor[0].weight.requires_grad_(False)

    def own_values(algorithm, learner):
        learner.evaluation = type("Own", (Evaluation,), {})()

    changes = (
        subclass,
        own_learner,
        own_policy,
        own_layer,
        hook,
        hook_of_parameter,
        hook_of_target,
        frozen,
        own_values,
    )
    for change in changes:
        algorithm = make_parts("native:Pendulum", "td3").trainer.algorithm
        (learner,) = algorithm.groups.values()
        change(algorithm, learner)
        assert not fuse_known(algorithm), change.__name__
        assert not isinstance(learner.evaluation, FusedEvaluation), change.__name__


def test_targets_are_the_same_in_checkpoints_and_follow():
    parts = make_parts("native:Pendulum", "td3")
    algorithm = parts.trainer.algorithm
    (learner,) = algorithm.groups.values()
    before = {key: tensor.clone() for key, tensor in learner.target_q.state_dict().items()}
    assert fuse_known(algorithm)
    for key, tensor in learner.target_q.state_dict().items():
        torch.testing.assert_close(tensor, before[key], rtol=0, atol=0)
    learner.load_state_dict(
        make_parts("native:Pendulum", "td3", {"seed": 5}).trainer.algorithm.groups["agent"].state_dict()
    )
    flat = learner.evaluation._networks[id(learner.target_q)]
    own = torch.cat([p.detach().flatten() for p in learner.target_q.parameters()])
    torch.testing.assert_close(torch.cat(flat.vectors), own, rtol=0, atol=0)
    assert not torch.equal(own, torch.cat([tensor.flatten() for tensor in before.values()]))
