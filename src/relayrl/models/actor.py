"""The acting interface: rows of observations in, actions out. Free of torch, so that an actor's process need not load it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.models.action_head import ActionHead


class Actor(ABC):
    """Draws actions for rows of observations."""

    head: ActionHead

    @abstractmethod
    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        """Distribution parameters [L, P] of observations with leading axis L; valid until the next call."""

    def act(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> Array:
        """Drawn actions, unclipped, as they are stored."""
        return self.head.sample(self.distribution(obs, mask), rng)

    def act_greedily(self, obs: Tree, mask: Array | None = None) -> Array:
        """The most likely actions."""
        return self.head.mode(self.distribution(obs, mask))
