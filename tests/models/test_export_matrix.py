"""Exported files of every algorithm × action space × (mask, normalised) × format give the live policy's numbers.

Policies are those that a learner is built with, moved away from where they begin. Recurrent ones have tests of their own.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.algorithms.registry import algorithms
from relayrl.models.acting.torch_actor import ScriptActor, TorchActor
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic, Policy
from relayrl.training.trainers.construction import GroupPlan, LearnerPlan, build_learner

NUM_ROWS = 1000
OBSERVATIONS = spaces.Box(-1.0, 1.0, (5,))
ACTIONS = {
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
    "discrete": spaces.Discrete(4, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
}
BASES = ("reinforce", "ppo", "impala", "appo", "ddpg", "td3", "sac")
ALONE = ("poca", "bc")
"""Algorithms without other forms."""
TAKES = {"ddpg": ("box",), "td3": ("box",), "sac": ("box", "discrete", "multi_discrete")}
"""Action spaces of algorithms that do not take all; they refuse the others by name."""
MATRIX = [
    (algo, action, masked, normalized, file_format)
    for algo, action, masked, normalized, file_format in product(
        (*BASES, *ALONE), ACTIONS, (False, True), (False, True), ExportFormat
    )
    if action in TAKES.get(algo, ACTIONS) and not (masked and action in ("box", "multi_binary"))
]


COMPOSITE = {
    "hybrid": spaces.Dict(
        {"move": spaces.Box(-1, 1, (2,)), "turn": spaces.Box(-1, 1, (2, 3)), "key": spaces.Discrete(3)}
    ),
    "integers": spaces.Box(0, 4, (2, 2), np.int64),
    "choices": spaces.MultiDiscrete([[2, 3], [4, 2]]),
}


def policy_of(algo: str, action_space: Any, *, normalized: bool = False, seen: Any = OBSERVATIONS) -> Policy:
    """The policy that a run of `algo` begins with."""
    entry = algorithms()[algo]
    params, network = entry.params(), NetworkSettings(hidden_sizes=(16, 16), normalize_observations=normalized)
    plan = LearnerPlan(entry, params, seed=0, num_envs=1, max_steps=100)
    learner = build_learner(plan, [GroupPlan("agent", seen, action_space, 2, network, params)])
    return learner.policies["agent"]


def moved(policy: Policy) -> Policy:
    """Away from the first policy, which is nearly the same for every observation."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    if policy.normalizer is not None:
        policy.normalizer.update(torch.randn(100, 5, generator=generator) * 3 + 1)
    return policy


@pytest.mark.parametrize(("algo", "action", "masked", "normalized", "file_format"), MATRIX)
def test_exported_numbers_are_the_live_ones(
    algo: str, action: str, masked: bool, normalized: bool, file_format: ExportFormat, tmp_path: Path
) -> None:
    policy = moved(policy_of(algo, ACTIONS[action], normalized=normalized))
    head, rng = policy.head, np.random.default_rng(3)
    metadata = PolicyMetadata(
        "env", algo, "agent", 1, masked, OBSERVATIONS, ACTIONS[action], head.kind, head.noise_scale
    )
    path = export_policy(policy, metadata, tmp_path / f"model{file_format.suffix}", file_format)
    obs = rng.normal(size=(NUM_ROWS, 5)).astype(np.float32)
    mask = None
    if masked:
        mask = rng.random((NUM_ROWS, head.mask_width)) < 0.5
        mask[:, [0, -1]] = True
    live = TorchActor(policy)
    want = live.distribution(obs, mask)
    actor = ExportedActor(path) if file_format is ExportFormat.ONNX else ScriptActor(path)
    got = actor.distribution(obs, mask)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    drawn = [head.sample(parameters, np.random.default_rng(1)) for parameters in (got, want)]
    np.testing.assert_allclose(drawn[0], drawn[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("algo", "action", "file_format"), [*product(("ppo", "mappo", "poca"), COMPOSITE, ExportFormat)]
)
def test_policies_of_images_with_composite_actions_run_with_any_number_of_rows(
    algo: str, action: str, file_format: ExportFormat, tmp_path: Path
) -> None:
    """With a critic of its own a policy's file had free rows all the same; with a central one it had three."""
    images, actions = spaces.Box(0, 255, (20, 20, 3), np.uint8), COMPOSITE[action]
    policy = policy_of(algo, actions, seen=images)
    metadata = PolicyMetadata("env", algo, "agent", 1, False, images, actions, policy.head.kind, 0.0)
    path = export_policy(policy, metadata, tmp_path / f"model{file_format.suffix}", file_format)
    obs = np.random.default_rng(3).integers(0, 256, (7, 20, 20, 3), np.uint8)
    actor = ExportedActor(path) if file_format is ExportFormat.ONNX else ScriptActor(path)
    np.testing.assert_allclose(actor.distribution(obs), TorchActor(policy).distribution(obs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("base", BASES)
def test_forms_for_several_agents_export_the_same_kind_of_policy(base: str) -> None:
    """So the matrix above holds for them: same head, same actor, same parameters from the same seed."""
    own, *others = (policy_of(form, ACTIONS["box"]) for form in (base, f"i{base}", f"ma{base}"))
    for other in others:
        assert type(other.head) is type(own.head)
        for one, two in zip(own.actor_parameters(), other.actor_parameters(), strict=True):
            assert torch.equal(one, two)


def test_the_matrix_covers_every_algorithm_of_the_registry() -> None:
    assert {f"{form}{base}" for base in BASES for form in ("", "i", "ma")} | set(ALONE) == set(algorithms())


@pytest.mark.parametrize("threads", [1, 2])
def test_rounding_in_another_order_is_no_reason_to_refuse_an_export(threads: int, tmp_path: Path) -> None:
    """Convolutions of torch add up in another order with every number of threads, and large weights make that visible."""
    images, actions = spaces.Box(0, 255, (36, 36, 3), np.uint8), ACTIONS["discrete"]
    policy = ActorCritic(images, actions, NetworkSettings(hidden_sizes=(8,)), torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for parameter in policy.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    policy.return_normalizer.scale *= 0.5
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        metadata = PolicyMetadata("env", "ppo", "agent", 1, False, images, actions)
        for file_format in ExportFormat:
            assert export_policy(policy, metadata, tmp_path / "model", file_format).exists()
    finally:
        torch.set_num_threads(before)
