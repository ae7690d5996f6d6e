"""Gradient steps from a replay on a device are those that the host takes of the same transitions."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from relayrl.engines.device.resident_run import ResidentParts, build_resident
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.training.replay.joint_replay import GroupTransitions, JointTransitions

SETTINGS: dict[str, Any] = {
    "device": "cpu:0",
    "environment.num_envs": 6,
    "params.update_interval": 60,
    "params.learning_starts": 1,
    "params.buffer_size": 600,
    "params.batch_size": 32,
    "network.normalize_observations": True,
}


def _parts(env: str, algo: str, options: dict[str, Any]) -> ResidentParts:
    given = [*SETTINGS.items(), *((f"environment.options.{key}", value) for key, value in options.items())]
    parts = build_resident(build_run_settings(env, None, {"algo": algo}, given))
    assert isinstance(parts, ResidentParts)
    return parts


def _on_host(transitions: JointTransitions) -> JointTransitions:
    def array(value: Any) -> Any:
        return None if value is None else np.asarray(value)

    groups = {
        name: GroupTransitions(**{field.name: array(getattr(own, field.name)) for field in fields(own)})
        for name, own in transitions.groups.items()
    }
    return replace(transitions, groups=groups, rows=array(transitions.rows), weight=array(transitions.weight))


@pytest.mark.parametrize(
    ("env", "algo", "options"),
    [
        ("native:Pendulum", "ddpg", {"max_episode_steps": 7}),
        ("native:simple_spread", "maddpg", {"continuous_actions": True, "max_cycles": 7}),
        ("native:simple_speaker_listener", "iddpg", {"continuous_actions": True, "max_cycles": 7}),
    ],
)
def test_steps_equal_those_of_the_host(env: str, algo: str, options: dict[str, Any]) -> None:
    resident, host = _parts(env, algo, options), _parts(env, algo, options)
    rollouts: Any = resident.collector.fill(10)  # type: ignore[attr-defined]
    trainer: Any = resident.trainer
    trainer.receive(rollouts)
    host.trainer.algorithm.observe(rollouts)  # type: ignore[attr-defined]
    for _ in range(3):
        transitions = trainer.replay.sample_on_device(32, gamma=0.9)
        found, _ = trainer.algorithm.begin(transitions)
        expected, _ = host.trainer.algorithm.update(_on_host(transitions))  # type: ignore[attr-defined]
        for name, number in expected.items():
            assert float(found[name]) == pytest.approx(number, rel=1e-3, abs=1e-5), name
    for name, policy in resident.policies.items():
        for key, tensor in policy.state_dict().items():
            torch.testing.assert_close(tensor, host.policies[name].state_dict()[key], rtol=1e-3, atol=1e-5)


def test_rows_hold_what_followed_them_and_truncation_is_bootstrapped() -> None:
    parts = _parts("native:Pendulum", "ddpg", {"max_episode_steps": 7})
    trainer: Any = parts.trainer
    rollouts: Any = parts.collector.fill(10)  # type: ignore[attr-defined]
    (rollout,) = rollouts.values()
    assert int(rollout.truncated.sum()) == 6
    trainer.receive(rollouts)
    drawn = trainer.replay.sample_on_device(256, gamma=0.9)
    (own,) = drawn.groups.values()
    assert bool((own.discount == 0.9).all()), "only termination cuts the bootstrap"
    goes_on = ~rollout.truncated[:-1]
    torch.testing.assert_close(rollout.next_obs[:-1][goes_on], rollout.obs[1:][goes_on], rtol=0, atol=0)
    assert not torch.equal(rollout.next_obs[:-1][~goes_on], rollout.obs[1:][~goes_on])
    flat = rollout.obs.view(60, 1, 3)
    torch.testing.assert_close(own.obs, flat[drawn.rows], rtol=0, atol=0)


def test_the_ring_forgets_the_oldest() -> None:
    parts = _parts("native:Pendulum", "ddpg", {})
    trainer: Any = parts.trainer
    for _ in range(12):
        last: Any = parts.collector.fill(10)  # type: ignore[attr-defined]
        trainer.replay.add(last)
    assert len(trainer.replay) == 600
    (rollout,), (columns,) = last.values(), trainer.replay._groups.values()
    torch.testing.assert_close(columns["obs"][10:20].view(10, 6, 3), rollout.obs, rtol=0, atol=0)


def test_a_rollout_goes_on_at_the_beginning_of_the_ring() -> None:
    parts = _parts("native:Pendulum", "ddpg", {})
    replay: Any = parts.trainer.replay  # type: ignore[attr-defined]
    rollouts: Any = parts.collector.fill(10)  # type: ignore[attr-defined]
    replay.add({name: rollout.rows(7) for name, rollout in rollouts.items()})
    for _ in range(10):
        replay.add(rollouts)
    (rollout,), (columns,) = rollouts.values(), replay._groups.values()
    torch.testing.assert_close(columns["obs"][97:].view(3, 6, 3), rollout.obs[:3], rtol=0, atol=0)
    torch.testing.assert_close(columns["obs"][:7].view(7, 6, 3), rollout.obs[3:], rtol=0, atol=0)


def test_steps_taken_together_are_those_taken_one_by_one() -> None:
    found = []
    for counts in ([5, 20], [1] * 25):  # 20 are more than a graph has
        parts = _parts("native:Pendulum", "td3", {"max_episode_steps": 7})
        trainer: Any = parts.trainer
        trainer.receive(parts.collector.fill(10))  # type: ignore[attr-defined]
        learner: Any = trainer._take_steps.__self__
        for count in counts:
            assert tuple(learner.take_steps(count)) == ()
        assert trainer.algorithm.num_updates == 25
        assert learner._counts["value/loss"] == 25
        assert learner._counts["policy/loss"] == 12, "the policy's turn is every other step"
        (policy,) = parts.policies.values()
        found.append(policy.state_dict())
    for key, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][key], rtol=0, atol=0)


def test_what_captured_actions_depend_on_changes_with_the_params() -> None:
    parts = _parts("native:Pendulum", "td3", {})
    trainer: Any = parts.trainer
    (actor,) = parts.collector._actors.values()  # type: ignore[attr-defined]
    assert actor.mode == (True, trainer.algorithm.params.action_noise)
    trainer.receive(parts.collector.fill(10))  # type: ignore[attr-defined]
    trainer.configure("", trainer.algorithm.params.model_copy(update={"exploration_noise": 0.5}))
    assert actor.mode == (False, 0.5)
