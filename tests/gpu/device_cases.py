"""Every algorithm in one small run on a device, beside the same run on the CPU: the cases, and what is asked of each.

Needs gymnasium, RelayRL's own environments and pytest alone, so that it runs on a bare machine with a GPU.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.registry import algorithms
from relayrl.data.trees import leaves, map_tree
from relayrl.engines.local.run_parts import RunParts, make_run_parts
from relayrl.envs.environment_contract import ScalarEnvironment, ScalarReset, ScalarStep
from relayrl.models.compute_device import device_of
from relayrl.models.exports.export import export_policy, metadata_of
from relayrl.models.exports.exported import ExportedActor, ExportFormat
from relayrl.training.files.state_codec import read_state, write_state

SPREAD, TAG, CARTPOLE, PENDULUM = "native:simple_spread", "native:simple_tag", "native:CartPole", "native:Pendulum"
TESTING = "relayrl.testing"
DYING, MASKED, MEMORY = f"{TESTING}:DyingAgents", f"{TESTING}:MaskedBandit", f"{TESTING}:RecallCue"
PIXELS = "device_cases:Pixels"


class Pixels(ScalarEnvironment):
    """A bright square in an image of bytes, beside a number; the action is where the square is, left or right."""

    def __init__(self, *, is_continuous: bool = False) -> None:
        image = spaces.Box(0, 255, (16, 16, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "time": spaces.Box(0.0, 1.0, (1,), np.float32)})
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if is_continuous else spaces.Discrete(2)
        self._random, self._step, self._side = np.random.default_rng(), 0, 0

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._step, self._side = 0, int(self._random.integers(2))
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        chosen = int(np.asarray(action).reshape(-1)[0] > 0)
        reward, self._step = float(chosen == self._side), self._step + 1
        self._side = int(self._random.integers(2))
        return ScalarStep(self.build_observation(), reward, False, self._step == 8, {})

    def build_observation(self) -> dict[str, Any]:
        image = self._random.integers(60, size=(16, 16, 3)).astype(np.uint8)
        image[4:10, 8 * self._side : 8 * self._side + 6] = 255
        return {"image": image, "time": np.array([self._step / 8], np.float32)}


@dataclass(frozen=True, slots=True)
class Case:
    """One algorithm in one environment, with settings that are not the usual small ones."""

    name: str
    algo: str
    env: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def parts(self, device: str, **more: Any) -> RunParts:
        """The run's parts on a device."""
        is_on_policy = getattr(algorithms()[self.algo].params, "is_on_policy", True)
        usual = {"environment.num_envs": 4, "network.hidden_sizes": (16, 16), "device": device, "seed": 3}
        usual |= ON_POLICY if is_on_policy else REPLAY
        known = {key: value for key, value in usual.items() if _is_known(self.algo, key)}
        return make_run_parts(self.env, algo=self.algo, settings={**known, **self.settings, **more})


ON_POLICY = {
    "trainer.time_horizon": 24,
    "params.num_minibatches": 2,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.batch_size": 32,
}
REPLAY = {
    "params.learning_starts": 64,
    "params.update_interval": 64,
    "params.train_iters": 3,
    "params.batch_size": 32,
    "params.buffer_size": 512,
}
CONTINUOUS = {"continuous_actions": True}
ON_HOST = {"device": "cpu"}
"""Native environments would go to the device with their policies, and draw there."""
GRU = {"network.memory": {"kind": "gru", "size": 12, "sequence_length": 6}}
LSTM = {"network.memory": {"kind": "lstm", "size": 12, "sequence_length": 6}}
NATIVE = {"environment.options": ON_HOST}
NORMALIZED = {"network.normalize_observations": True}
IMAGE = {"network.encoder_size": 24}


def _is_known(algo: str, key: str) -> bool:
    section, _, name = key.partition(".")
    return section != "params" or name in algorithms()[algo].params.model_fields


def _cases() -> Iterator[Case]:
    for name, entry in algorithms().items():
        if name == "bc":  # learns from records: a test of its own
            continue
        is_replay = not entry.params.is_on_policy
        several = name.startswith(("i", "ma", "poca")) and name != "impala"
        if several:
            options = {**ON_HOST, **CONTINUOUS} if is_replay else ON_HOST
            yield Case(name, name, SPREAD, {"environment.options": options})
        else:
            yield Case(name, name, PENDULUM if is_replay else CARTPOLE, NATIVE)
    normalized_returns = {**NORMALIZED, "params.normalize_returns": True}
    yield Case("ppo-continuous-normalized", "ppo", PENDULUM, {**NATIVE, **normalized_returns})
    yield Case("ppo-without-kl-limit", "ppo", CARTPOLE, {**NATIVE, "params.target_kl": None, "params.value_clip": 0.2})
    yield Case("ppo-masks", "ppo", MASKED)
    yield Case("ppo-composite-actions", "ppo", f"{TESTING}:FollowSignal")
    yield Case("ppo-nested-observations", "ppo", f"{TESTING}:NestedSpaces")
    yield Case("ppo-lstm", "ppo", MEMORY, LSTM)
    yield Case("appo-gru", "appo", MEMORY, GRU)
    yield Case("mappo-lstm-dying", "mappo", DYING, {**LSTM, **NORMALIZED})
    yield Case("mappo-state-dying", "mappo", DYING, {"network.critic_input": "both", **NORMALIZED})
    yield Case("ippo-dying", "ippo", DYING)
    yield Case("poca-dying", "poca", DYING, {"params.normalize_returns": True, **NORMALIZED})
    yield Case("ppo-images", "ppo", PIXELS, IMAGE)
    yield Case("ppo-images-resnet", "ppo", PIXELS, {**IMAGE, "network.encoder": "resnet"})
    yield Case("ppo-images-apart", "ppo", PIXELS, {**IMAGE, "network.shared_encoder": False})
    yield Case("ppo-images-lstm", "ppo", PIXELS, {**IMAGE, **LSTM})
    seen = {**IMAGE, "environment.options": {"is_continuous": True}}
    yield Case("sac-images-shifted", "sac", PIXELS, {**seen, "params.random_shift": 2})
    yield Case("td3-images", "td3", PIXELS, seen)
    yield Case("sac-masks-priorities", "sac", MASKED, {"params.priority_exponent": 0.6, "params.num_step_returns": 3})
    yield Case("masac-state-dying", "masac", DYING, {"network.critic_input": "both", **NORMALIZED})
    yield Case("isac-two-groups", "isac", TAG, NATIVE)
    for signal in ("rnd", "curiosity"):
        yield Case(f"ppo-{signal}", "ppo", CARTPOLE, {**NATIVE, f"reward_signals.{signal}.strength": 0.1})


CASES = {case.name: case for case in _cases()}


def learn(parts: RunParts) -> dict[str, Any]:
    """Collect one rollout and learn from it; gives what was learned from."""
    rollouts = parts.collect(parts.trainer.policy_version)
    version = parts.trainer.policy_version
    relearn(parts, rollouts)
    assert parts.trainer.policy_version > version, "nothing was learned"
    return rollouts


def relearn(parts: RunParts, rollouts: Mapping[str, Any]) -> dict[str, float]:
    """Learn from a rollout that was collected before."""
    parts.trainer.receive(rollouts)
    metrics = parts.trainer.begin()()
    assert all(type(number) is float and np.isfinite(number) for number in metrics.values()), metrics
    return metrics


def saved(parts: RunParts, folder: Path) -> dict[str, Any]:
    """The state of a run, written to a file and read from it again."""
    content = io.BytesIO()
    write_state(content, {"trainer": parts.trainer.state_dict(), "signals": parts.signals.state_dict()})
    path = folder / "state.ckpt"
    path.write_bytes(content.getvalue())
    return read_state(path)


def restored(case: Case, device: str, state: Mapping[str, Any]) -> RunParts:
    """The run as it was saved, on a device."""
    parts = case.parts(device)
    parts.trainer.load_state_dict(state["trainer"])
    parts.signals.load_state_dict(state["signals"])
    return parts


def tensors_of(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a state, by their place in it."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tensors_of(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from tensors_of(value, f"{path}/{i}")


def require_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise where a bit differs."""
    here, there = dict(tensors_of(one)), dict(tensors_of(other))
    assert here.keys() == there.keys()
    assert here, "a state without tensors"
    odd = [path for path, tensor in here.items() if not torch.equal(tensor, there[path])]
    assert not odd, odd


def require_close(one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float) -> None:
    """Raise where networks, moments or replay differ by more than rounding."""
    here, there = dict(tensors_of(one)), dict(tensors_of(other))
    assert here.keys() == there.keys()
    for path, tensor in here.items():
        np.testing.assert_allclose(
            tensor.double().numpy(), there[path].double().numpy(), rtol=tolerance, atol=tolerance, err_msg=path
        )


def require_same_decisions(one: Mapping[str, Any], other: Mapping[str, Any], tolerance: float) -> None:
    """Raise where two collectors did something else than each other."""
    for group, rollout in one.items():
        for name in ("obs", "action", "reward", "valid"):
            pairs = zip(leaves(getattr(rollout, name)), leaves(getattr(other[group], name)), strict=True)
            for (_, here), (_, there) in pairs:
                np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance, err_msg=f"{group}/{name}")


def require_exported(case: Case, parts: RunParts, rollouts: Mapping[str, Any], folder: Path, tolerance: float) -> None:
    """Raise where the exported policy or the live one on its device decide otherwise."""
    for name, policy in parts.policies.items():
        masked = rollouts[name].action_mask is not None
        metadata = metadata_of(policy, env=case.env, algo=case.algo, group=name, version=1, masked=masked)
        for file_format in ExportFormat:
            export_policy(policy, metadata, folder / f"{name}{file_format.suffix}", file_format)
        exported, live = ExportedActor((folder / name).with_suffix(ExportFormat.ONNX.suffix)), live_actor(policy)
        obs = map_tree(lambda leaf: np.ascontiguousarray(leaf[0]), rollouts[name].obs)
        mask = rollouts[name].action_mask[0] if masked else None
        rows = len(next(leaves(obs))[1])
        memory = np.zeros((rows, policy.memory_width), np.float32)
        want, got = (actor.decide(obs, mask, memory, np.random.default_rng(0)) for actor in (exported, live))
        for (_, here), (_, there) in zip(leaves(want.action), leaves(got.action), strict=True):
            np.testing.assert_allclose(here, there, rtol=tolerance, atol=tolerance)


def require_on(parts: RunParts, device: str) -> None:
    """Raise where a policy is elsewhere."""
    for policy in parts.policies.values():
        assert device_of(policy).type == device.partition(":")[0]
        elsewhere = [name for name, buffer in policy.named_buffers() if buffer.device != device_of(policy)]
        assert not elsewhere, elsewhere
