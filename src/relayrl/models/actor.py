"""The acting interface: rows of observations in, actions out. Free of torch, so that an actor's process need not load it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.models.action_head import ActionHead, LikelihoodHead


class Actor(ABC):
    """Draws actions for rows of observations."""

    head: ActionHead
    knows_logp: bool = False
    """Whether `act_with_logp` costs no more than `act`."""
    memory_width: int = 0
    """Numbers that the policy remembers of each lane (`lane_memory`); 0 where every observation is judged by itself."""

    @abstractmethod
    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        """Distribution parameters [L, P] of observations with leading axis L; valid until the next call."""

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        """Distribution parameters [L, P] and the memory [L, M] after, of what lanes see and remember."""
        return self.distribution(obs, mask), memory

    def act(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> Array:
        """Drawn actions, unclipped, as they are stored."""
        return self.head.sample(self.distribution(obs, mask), rng)

    def act_with_logp(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> tuple[Array, Array]:
        """The actions that `act` would give, and their log-probabilities [L]; only of heads that have likelihoods."""
        head = self.head
        assert isinstance(head, LikelihoodHead)
        parameters = self.distribution(obs, mask)
        action = head.sample(parameters, rng)
        return action, head.log_prob_numpy(parameters, action)

    def act_greedily(self, obs: Tree, mask: Array | None = None) -> Array:
        """The most likely actions."""
        return self.head.mode(self.distribution(obs, mask))
