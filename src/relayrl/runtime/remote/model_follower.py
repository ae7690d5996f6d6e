"""Policies that a server publishes, as actors act with them: checked, loaded, and replaced by newer ones.

    follower = ModelFollower(link, "agent", observation_space, action_space)
    actor = FollowedActor(follower)
    version = actor.take_newest()         # at a moment of the caller's choice, never in the middle of a rollout

A policy that cannot be loaded, or that is not of these spaces, is never acted with: the one before stays, and it is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from relayrl.accelerator.mlp_actor import MlpActor, described_actor
from relayrl.data.trees import Array, Space, Tree
from relayrl.errors import ConfigError, ModelRefusedError, RelayRLError
from relayrl.models.acting.actor import Actor, Decision, ForwardActor, Outputs
from relayrl.models.exports.exported import METADATA_PREFIX, ExportedActor, PolicyMetadata
from relayrl.models.exports.model_validation import probe_inputs, read_policy, require_answer, validate_model
from relayrl.models.exports.onnx_reader import OnnxContent, read_onnx
from relayrl.models.heads.action_head import ActionHead
from relayrl.runtime.remote.server_link import ModelBytes, ServerLink
from relayrl.runtime.requests.policy_model import PolicyModel, file_model, load_onnx

_log = logging.getLogger("relayrl.runtime.remote.model_follower")
_OWN_METADATA = ("policy_version", "mlp", "probe")
"""What every version has of its own."""


class ModelFollower:
    """The newest policy of one group."""

    def __init__(self, link: ServerLink, group: str, observation_space: Space, action_space: Space) -> None:
        self._link, self.group = link, group
        self._updates = PolicyUpdates(observation_space, action_space)
        self.version = -1
        self._refused = -1
        self._model: PolicyModel | None = None
        self.num_refused = 0
        """Policies that came and could not be used."""

    def wait(self, timeout_s: float) -> None:
        """Return when there is a policy; `ServerUnreachableError` where none comes."""
        first = self._link.wait_for_model(self.group, timeout_s)
        self._model, self.version = self._loaded(first), first.version

    @property
    def model(self) -> PolicyModel:
        """What acts now."""
        if self._model is None:
            raise ConfigError(f"there is no policy of {self.group!r} yet; call wait()")
        return self._model

    @property
    def seen(self) -> int:
        """The newest version that was looked at, used or not."""
        return max(self.version, self._refused)

    def take_newest(self) -> int:
        """Act with the newest policy from now on; gives its version."""
        newest = self._link.newest(self.group)
        if newest is not None and newest.version > self.seen:
            try:
                self._model, self.version = self._loaded(newest), newest.version
            except RelayRLError as error:
                self._refused = newest.version
                self.num_refused += 1
                _log.error("policy %s version %d is not used: %s", self.group, newest.version, error)
        return self.version

    def _loaded(self, newest: ModelBytes) -> PolicyModel:
        model, metadata = self._updates.load(newest.content)
        if metadata.group != self.group:
            raise ConfigError(f"it is a policy of {metadata.group!r:.100}, not of {self.group!r}")
        return model


class PolicyUpdates:
    """Loads one version after the other; `ModelRefusedError` says why one may not be.

    Loading a file into onnxruntime takes longer than playing a block with it. Where the kernels act for a version, they act for
    the next one too, if everything that `validate_model` reads is right, the graph is the same but for its numbers, and the
    description of its MLPs, which the kernels act with, answers the probe as the exporter says. The graph itself is validated
    and loaded when it is first needed: for batches that are too large for the kernels.

    A file that differs from one that was read in nothing but these numbers, byte for byte, is not read again.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self._spaces = observation_space, action_space
        self._graph: OnnxContent | None = None
        """Of the last version that was loaded whole, where the kernels act for it."""
        self._known: _KnownFile | None = None
        """The last file that was read and updated from."""

    def load(self, content: bytes) -> tuple[PolicyModel, PolicyMetadata]:
        """What acts, and what it says of itself."""
        return self._updated(content) or self._loaded(content)

    def _loaded(self, content: bytes) -> tuple[PolicyModel, PolicyMetadata]:
        seen, done = self._spaces
        metadata = validate_model(content, observation_space=seen, action_space=done)
        policy = load_onnx(content)
        self._graph = _without_numbers(read_onnx(content)) if isinstance(policy.actor, MlpActor) else None
        self._known = None
        return file_model(policy.actor, metadata, has_value=policy.layout.has_value), metadata

    def _updated(self, content: bytes) -> tuple[PolicyModel, PolicyMetadata] | None:
        """None where it has to be loaded."""
        if self._graph is None:
            return None
        file = self._known
        metadata = None if file is None else file.metadata_of(content)
        if file is None or metadata is None:
            file = self._read(content)
            if file is None:
                return None
            metadata = file.metadata
        head, inputs, has_value = file.head, file.inputs, file.has_value
        try:
            actor = described_actor(metadata, head, _LaterActor(content, metadata, head))
            outputs = None if actor is None else actor.forward(inputs["obs"], inputs.get("action_mask"), None)
        except ValueError as error:
            raise ModelRefusedError(f"the description of the policy is damaged: {error!s:.200}") from error
        if actor is None or outputs is None or (outputs.value is not None) != has_value:
            return None
        require_answer(outputs.parameters, metadata, head)
        self._known = file
        return file_model(actor, metadata, has_value=has_value), metadata

    def _read(self, content: bytes) -> _KnownFile | None:
        """The file, if its graph is the known one and it can be probed without onnxruntime."""
        seen, done = self._spaces
        metadata, head, described = read_policy(content, observation_space=seen, action_space=done)
        inputs = probe_inputs(metadata, head)
        is_probed = bool(metadata.probe and metadata.mlp) and not set(inputs) - {"obs", "action_mask"}
        if _without_numbers(described) != self._graph or not is_probed:
            return None
        return _KnownFile(content, described, metadata, head, inputs)


class _KnownFile:
    """A file that was read, to compare others with."""

    def __init__(
        self,
        content: bytes,
        described: OnnxContent,
        metadata: PolicyMetadata,
        head: ActionHead,
        inputs: Mapping[str, Array],
    ) -> None:
        self._content, self.metadata, self.head, self.inputs = content, metadata, head, inputs
        self.has_value = any(value.name == "value" for value in described.outputs)
        self._places = [described.metadata_places[METADATA_PREFIX + name] for name in _OWN_METADATA]
        free = sorted([*described.number_places, *self._places])
        edges = [0, *(edge for place in free for edge in place), len(content)]
        self._fixed = [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]

    def metadata_of(self, content: bytes) -> PolicyMetadata | None:
        """What a file says of itself that is the same but for its numbers; None where anything else differs."""
        own = self._content
        if len(content) != len(own) or any(content[begin:end] != own[begin:end] for begin, end in self._fixed):
            return None
        try:
            version, mlp, probe = (content[begin:end].decode() for begin, end in self._places)
            return replace(self.metadata, policy_version=int(version), mlp=mlp, probe=probe)
        except ValueError:
            return None


class _LaterActor(ForwardActor):
    """A file's graph, loaded when it is asked for the first time."""

    def __init__(self, content: bytes, metadata: PolicyMetadata, head: ActionHead) -> None:
        self._content, self.head = content, head
        self.observation_space, self.memory_width = metadata.observation_space, metadata.memory_width
        self._actor: ExportedActor | None = None

    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        if self._actor is None:
            validate_model(self._content)
            self._actor = ExportedActor(self._content, with_value=True)
        return self._actor.forward(obs, mask, memory)


def _without_numbers(described: OnnxContent) -> OnnxContent:
    return replace(described, metadata={})


class FollowedActor(Actor):
    """Acts with one version until the newest is taken."""

    def __init__(self, follower: ModelFollower) -> None:
        self._follower = follower
        self._actor: Actor = follower.model.actor
        self.head, self.memory_width = self._actor.head, self._actor.memory_width
        self.knows_logp = self._actor.knows_logp

    def take_newest(self) -> int:
        """Act with the newest policy from now on; gives its version."""
        version = self._follower.take_newest()
        self._actor = self._follower.model.actor
        self.head = self._actor.head
        return version

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self._actor.distribution(obs, mask)

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        return self._actor.step(obs, mask, memory)

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        return self._actor.decide(obs, mask, memory, rng)


def spaces_of(behavior: Any) -> tuple[Space, Space]:
    """Observation and action space of one entry of a handshake's behaviours."""
    from relayrl.data.arrow.space_json import space_from_json

    try:
        texts = behavior["observation_space"], behavior["action_space"]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the server's behaviours lack {error}") from error
    observation, action = (space_from_json(text, max_elements=1 << 24) for text in texts)
    return observation, action
