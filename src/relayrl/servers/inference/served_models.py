"""Loaded models and what they answer: the arrays of requests in, the arrays of replies out. One thread runs them.

Requests of a batch succeed or fail each on its own: what is wrong with one is found before it is joined with others, and where
a joint pass fails all the same, every request passes alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.trees import Array, Tree, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.errors import ProtocolError, RelayRLError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.warmup_actor import WarmupActor
from relayrl.runtime.remote.act_messages import ActRequest, RemoteChoice
from relayrl.runtime.remote.deployment import Deployment
from relayrl.runtime.requests.policy_model import OnnxPolicy, load_onnx
from relayrl.servers.inference.model_store import ModelStore

Arrays = dict[str, Array]
Outcome = Arrays | ProtocolError
FEW = 32


class ServedModel:
    """One version of one group's policy."""

    def __init__(self, group: str, version: int, policy: OnnxPolicy, rng: np.random.Generator) -> None:
        self.group, self.version, self.policy, self._rng = group, version, policy, rng
        metadata, layout = policy.metadata, policy.layout
        self._leaves = [
            (f"obs.{path}" if path else "obs", leaf_dtype(leaf), tuple(leaf.shape or ()))
            for path, leaf in space_leaves(metadata.observation_space)
        ]
        self._is_plain = len(self._leaves) == 1 and self._leaves[0][0] == "obs"
        self._mask_width, self._mask_parts = layout.mask_width, mask_parts(metadata.action_space)
        self._sampler: Actor = policy.actor
        if metadata.is_warming_up:
            state = Exploration(is_warming_up=True, noise_scale=metadata.noise_scale)
            self._sampler = WarmupActor(policy.actor, lambda: state)

    def check(self, request: ActRequest) -> None:
        """Raise `ProtocolError` for anything that this policy cannot act on."""
        arrays, num_rows = request.arrays, request.num_rows
        expected = len(self._leaves)
        for name, dtype, shape in self._leaves:
            _check_array(arrays, name, dtype, (num_rows, *shape))
        layout = self.policy.layout
        if "action_mask" in arrays:
            expected += 1
            if self._mask_width is None:
                raise ProtocolError("observation", f"actions of {layout.action_space} cannot be masked")
            mask = _check_array(arrays, "action_mask", np.dtype(bool), (num_rows, self._mask_width))
            if np.count_nonzero(allows_nothing(mask, self._mask_parts)):
                raise ProtocolError("mask", "a row of the action mask allows no action")
        elif layout.needs_mask:
            raise ProtocolError("observation", "this policy was trained with action masks and needs one")
        if layout.memory_width:
            expected += 1
            memory = _check_array(arrays, "memory", np.dtype(np.float32), (num_rows, layout.memory_width))
            if not np.isfinite(memory).all():
                raise ProtocolError("observation", "the memory holds NaN or infinity")
        if len(arrays) != expected:
            raise ProtocolError("observation", f"arrays {', '.join(arrays)[:200]}, expected {expected} of them")

    def answer(self, requests: Sequence[ActRequest]) -> list[Outcome]:
        """What each request is replied, after all of them were checked; they agree in choice and in having a mask."""
        try:
            return self._answer(requests)
        except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions share no public base class
            if len(requests) == 1:
                return [ProtocolError("inference", f"policy version {self.version} failed to act: {error!s:.300}")]
        return [outcome for request in requests for outcome in self.answer([request])]

    def _answer(self, requests: Sequence[ActRequest]) -> list[Outcome]:
        first = requests[0]
        if len(requests) == 1:
            return [self._checked(self._pass(first.arrays, first.choice))]
        joined = {name: np.concatenate([request.arrays[name] for request in requests]) for name in first.arrays}
        outputs = self._pass(joined, first.choice)
        start, outcomes = 0, list[Outcome]()
        for request in requests:
            end = start + request.num_rows
            outcomes.append(self._checked({name: array[start:end] for name, array in outputs.items()}))
            start = end
        return outcomes

    def _pass(self, arrays: Arrays, choice: RemoteChoice) -> Arrays:
        obs: Tree = (
            arrays["obs"]
            if self._is_plain
            else unflatten(self.policy.metadata.observation_space, iter([arrays[name] for name, _, _ in self._leaves]))
        )
        mask, memory = arrays.get("action_mask"), arrays.get("memory")
        outputs: dict[str, Array | None]
        if choice is RemoteChoice.CLIENT:
            distribution, value, after = self.policy.actor.forward(obs, mask, memory)
            outputs = {"distribution": distribution, "value": value, "memory": after}
        else:
            rng = self._rng if choice is RemoteChoice.SAMPLE else None
            action, logp, value, after = self._sampler.decide(obs, mask, memory, rng)
            action = self.policy.actor.head.to_environment(action)
            taken = {f"action.{path}" if path else "action": leaf for path, leaf in leaves(action)}
            outputs = {**taken, "logp": logp, "value": value, "memory": after}
        return {name: np.ascontiguousarray(array) for name, array in outputs.items() if array is not None}

    def _checked(self, outputs: Arrays) -> Outcome:
        for name, array in outputs.items():
            if array.dtype.kind == "f" and not _is_finite(array):
                return ProtocolError(
                    "inference",
                    f"policy version {self.version} gave NaN or infinity ({name}); "
                    "look for NaN in the observations or in the model",
                )
        return outputs


def _is_finite(array: Array) -> bool:
    if array.size <= FEW:  # NumPy takes longer to begin than Python to look at a few numbers
        return all(map(math.isfinite, array.ravel().tolist()))
    return bool(np.isfinite(array).all())


def _check_array(arrays: Mapping[str, Array], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    array = arrays.get(name)
    if array is None:
        raise ProtocolError("observation", f"there is no array {name!r}")
    if array.dtype != dtype or array.shape != shape:
        raise ProtocolError("observation", f"{name} is {array.dtype} {array.shape}, expected {dtype} {shape}")
    return array


@dataclass(frozen=True, slots=True)
class ServedModels:
    """All that is served at one moment; replaced whole."""

    models: Mapping[tuple[str, int], ServedModel] = field(default_factory=lambda: MappingProxyType({}))
    deployments: Mapping[str, Deployment] = field(default_factory=lambda: MappingProxyType({}))
    failures: tuple[str, ...] = ()
    """What could not be loaded, and why."""

    def find(self, group: str, version: int | None, actor: str) -> ServedModel:
        """The version that is asked for, or that the actor is assigned; `ProtocolError` if there is none."""
        deployment = self.deployments.get(group)
        if deployment is None:
            known = ", ".join(sorted(self.deployments)) or "none yet"
            raise ProtocolError("unknown_group", f"no group {group[:80]!r} is served; groups: {known[:200]}")
        model = self.models.get((group, deployment.version_for(group, actor) if version is None else version))
        if model is None:
            versions = ", ".join(str(number) for name, number in self.models if name == group)
            raise ProtocolError(
                "unknown_version", f"version {version} of {group!r} is not served; versions: {versions}"
            )
        return model


def load_served(store: ModelStore, now: ServedModels, rng: np.random.Generator) -> ServedModels:
    """What the store says is to be served: stable versions, canaries, and the stable ones before, for who acts with them yet.

    A model that is loaded is kept. One that cannot be loaded is left out and named; its group stays as it is.
    """
    models: dict[tuple[str, int], ServedModel] = {}
    deployments, failures = dict[str, Deployment](), list[str]()
    for group, stored in store.groups.items():
        wanted = stored.deployment
        if wanted is None:
            continue
        try:
            needed = [wanted.stable, *([] if wanted.canary is None else [wanted.canary])]
            for version in needed:
                models[group, version] = now.models.get((group, version)) or _load(store, group, version, rng)
            deployments[group] = wanted
        except RelayRLError as error:
            failures.append(str(error))
            if group in now.deployments:
                deployments[group] = now.deployments[group]
        recent = [key for key in now.models if key[0] == group and key not in models]
        models |= {key: now.models[key] for key in recent[-MAX_RECENT:]}
    return ServedModels(MappingProxyType(models), MappingProxyType(deployments), tuple(failures))


MAX_RECENT = 4
"""Versions of a group that are served for a while after they were replaced."""


def _load(store: ModelStore, group: str, version: int, rng: np.random.Generator) -> ServedModel:
    store.read(group, version)
    return ServedModel(group, version, load_onnx(store.file(group, version)), rng)
