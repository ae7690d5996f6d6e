"""The one way to act: rows of observations in, decisions out. Free of torch, so that an actor's process need not load it.

    decision = actor.decide(obs, mask, memory, rng)     # drawn with rng; greedily without one
    decision.action, decision.logp, decision.value, decision.memory

Three implementations: torch (`torch_actor`, the reference: live policies and TorchScript files), onnxruntime (`exported`) and
the compiled kernels (`relayrl.accelerator.mlp_actor`). All draw the same actions from the same generator, since the head draws
from the distribution's parameters, and the kernels draw what it draws. The collector, the runtime's agents and evaluation act
through `decide` alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.errors import ConfigError
from relayrl.models.acting.exploration import Exploration
from relayrl.models.heads.action_head import ActionHead

MEMORY_DECIDES = "this policy has a memory, which decides as well; call step(obs, mask, memory) or decide()"


class Decision(NamedTuple):
    """What an actor decided for L rows; fresh arrays."""

    action: Array
    """[L, …] unclipped, as they are stored."""
    logp: Array | None = None
    """[L] log-probabilities of the actions; None where the head has none."""
    value: Array | None = None
    """[L] values in units of reward; None where the actor computes none."""
    memory: Array | None = None
    """[L, M] the memory after this step; None where the policy has none."""


class Outputs(NamedTuple):
    """What a policy's forward pass gives for L rows."""

    parameters: Array
    """[L, P] of the action distribution, as the head lays them out."""
    value: Array | None = None
    memory: Array | None = None


class Actor(ABC):
    """Acts for rows of observations. Yours has `head` and `distribution` or, with a memory, `memory_width` and `step`."""

    head: ActionHead
    knows_logp: bool = False
    """Whether log-probabilities cost nothing beside the actions, so that a collector records them."""
    gives_value: bool = False
    """Whether decisions of an actor of yours have values, which agents then record."""
    memory_width: int = 0
    """Numbers that the policy remembers of each lane (`lane_memory`); 0 where every observation is judged by itself."""
    is_instant: bool = False
    """Whether `decide` takes less time for one row than waking a thread does, for any number of threads at once."""

    @abstractmethod
    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        """Distribution parameters [L, P] of observations with leading axis L; valid until the next call. For choices these are
        log-probabilities, normalised."""

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        """Distribution parameters [L, P] and the memory [L, M] after, of what lanes see and remember."""
        return self.distribution(obs, mask), memory

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        """Decide for rows that see `obs`, may do `mask` [L, A] and remember `memory` [L, M]; greedily without `rng`."""
        if self.memory_width:
            parameters, after = self.step(obs, mask, self._required(memory))
            return Decision(*choose(self.head, parameters, rng), None, np.array(after))
        if rng is None or type(self).act is Actor.act:
            return Decision(*choose(self.head, self.distribution(obs, mask), rng))
        action = self.act(obs, mask, rng)  # a subclass that draws by itself is obeyed
        return Decision(action, log_prob(self.head, self.distribution(obs, mask), action))

    def explore(self, exploration: Exploration) -> None:
        """Explore as a policy snapshot says."""
        if self.head.noise_scale != exploration.noise_scale:
            self.head.noise_scale = exploration.noise_scale

    def act(self, obs: Tree, mask: Array | None, rng: np.random.Generator) -> Array:
        """Drawn actions, unclipped, as they are stored; of a policy without memory."""
        return self.decide(obs, mask, None, rng).action

    def act_greedily(self, obs: Tree, mask: Array | None = None) -> Array:
        """The most likely actions; of a policy without memory."""
        return self.decide(obs, mask, None, None).action

    def _required(self, memory: Array | None) -> Array:
        if memory is None:
            raise ConfigError(MEMORY_DECIDES)
        return memory


class ForwardActor(Actor):
    """An actor of one forward pass, which gives everything that a decision needs."""

    @abstractmethod
    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        """Distribution parameters, values and the memory after; fresh arrays."""

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        if self.memory_width:
            raise ConfigError(MEMORY_DECIDES)
        return self.forward(obs, mask, None).parameters

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        outputs = self.forward(obs, mask, memory)
        return outputs.parameters, memory if outputs.memory is None else outputs.memory

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        outputs = self.forward(obs, mask, self._required(memory) if self.memory_width else None)
        return Decision(*choose(self.head, outputs.parameters, rng), outputs.value, outputs.memory)


def choose(head: ActionHead, parameters: Array, rng: np.random.Generator | None) -> tuple[Array, Array | None]:
    """Actions and their log-probabilities from a distribution's parameters [L, P]."""
    action = np.array(head.mode(parameters) if rng is None else head.sample(parameters, rng))
    return action, log_prob(head, parameters, action)


def log_prob(head: ActionHead, parameters: Array, action: Array) -> Array | None:
    """[L] log-probabilities of actions; None where the head has none."""
    logp = head.log_prob_numpy(parameters, action)
    return None if logp is None else np.asarray(logp, np.float32)
