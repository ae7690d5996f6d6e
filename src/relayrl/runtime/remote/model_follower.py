"""Policies that a server publishes, as actors act with them: checked, loaded, and replaced by newer ones.

    follower = ModelFollower(link, "agent", observation_space, action_space)
    actor = FollowedActor(follower)
    version = actor.take_newest()         # at a moment of the caller's choice, never in the middle of a rollout

A policy that cannot be loaded, or that is not of these spaces, is never acted with: the one before stays, and it is logged.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from relayrl.data.trees import Array, Space, Tree
from relayrl.errors import ConfigError, RelayRLError
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.exports.model_validation import validate_model
from relayrl.runtime.remote.server_link import ModelBytes, ServerLink
from relayrl.runtime.requests.policy_model import PolicyModel, file_model, load_onnx

_log = logging.getLogger("relayrl.runtime.remote.model_follower")


class ModelFollower:
    """The newest policy of one group."""

    def __init__(self, link: ServerLink, group: str, observation_space: Space, action_space: Space) -> None:
        self._link, self.group = link, group
        self._spaces = observation_space, action_space
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
        observation_space, action_space = self._spaces
        metadata = validate_model(newest.content, observation_space=observation_space, action_space=action_space)
        if metadata.group != self.group:
            raise ConfigError(f"it is a policy of {metadata.group!r:.100}, not of {self.group!r}")
        policy = load_onnx(newest.content)
        return file_model(policy.actor, metadata, has_value=policy.layout.has_value)


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
