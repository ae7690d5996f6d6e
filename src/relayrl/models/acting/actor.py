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
from typing import Any, NamedTuple

import numpy as np

from relayrl.data.trees import (
    Array,
    Space,
    Tree,
    index,
    leaf_dtype,
    leaves,
    map_tree,
    space_leaves,
    tree_leaves,
    unflatten,
)
from relayrl.errors import ConfigError
from relayrl.models.acting.exploration import Exploration
from relayrl.models.heads.action_head import ActionHead

MEMORY_DECIDES = (
    "this policy has a memory, which decides as well; call act_remembering(obs, memory), step() or decide()"
)


class Decision(NamedTuple):
    """What an actor decided for L rows; fresh arrays."""

    action: Any
    """[L, …] unclipped, as they are stored: an array, or a tree of arrays for Dict and Tuple spaces."""
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
    """Numbers that the policy remembers of each lane (`lane_memory`); 0 where every observation is decided on by itself."""
    observation_space: Space | None = None
    """What one observation looks like, so that `act` takes single ones too; None: it takes rows only."""
    equal_from_rows: int | None = None
    """Rows from which on a row's numbers are the same, bit for bit, in a batch of any size; None: they depend on its size."""
    is_instant: bool = False
    """Whether `decide` takes less time for one row than waking a thread does, for any number of threads at once."""

    def hold(self) -> None:  # noqa: B027 - most actors keep nothing
        """Nobody changes the parameters until `release`, as in a rollout: what an actor makes of them may be kept."""

    def release(self) -> None:  # noqa: B027
        """Parameters may change from now on."""

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

    def act(self, obs: Tree, mask: Array | None = None, rng: np.random.Generator | None = None) -> Any:
        """Actions inside the action space, drawn with `rng`, or the most likely ones; of a policy without memory.

        One observation gives one action, rows `[L, …]` give rows. A subclass that draws by itself overrides this for rows, and
        gives them unclipped, as they are stored.
        """
        return self._inside_the_space(obs, mask, None, rng)[0]

    def act_greedily(self, obs: Tree, mask: Array | None = None) -> Any:
        """The most likely actions, like `act` without a generator."""
        return self._inside_the_space(obs, mask, None, None)[0]

    def act_remembering(
        self, obs: Tree, memory: Array | None, mask: Array | None = None, rng: np.random.Generator | None = None
    ) -> tuple[Any, Array | None]:
        """Like `act`, for policies with a memory: actions, and the memory for the next step. None begins an episode."""
        return self._inside_the_space(obs, mask, self._beginning(obs) if memory is None else memory, rng)

    def _inside_the_space(
        self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None
    ) -> tuple[Any, Array | None]:
        rows, is_single = as_rows(self.observation_space, obs)
        if is_single:
            mask = None if mask is None else np.asarray(mask, bool).reshape(1, -1)
            memory = None if memory is None else np.asarray(memory, np.float32).reshape(1, -1)
        decision = self.decide(rows, mask, memory, rng)
        action = self.head.to_environment(decision.action)
        if not is_single:
            return action, decision.memory
        return index(action, 0), None if decision.memory is None else decision.memory[0]

    def _beginning(self, obs: Tree) -> Array:
        """What is remembered before the first step."""
        rows, _ = as_rows(self.observation_space, obs)
        return np.zeros((len(next(leaves(rows))[1]), self.memory_width), np.float32)

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


def as_rows(space: Space | None, obs: Tree) -> tuple[Tree, bool]:
    """Observations `[L, …]` in the dtypes of their space, from rows or from one, and whether it was one.

    Without a space they are rows, as they are. Raises where they are neither.
    """
    if space is None:
        return obs, False
    parts = list(space_leaves(space))
    arrays = [
        np.asarray(array, leaf_dtype(leaf))
        for (_, leaf), array in zip(parts, tree_leaves(space, obs, "obs"), strict=True)
    ]
    shapes = [leaf.shape or () for _, leaf in parts]
    is_single = all(array.shape == shape for array, shape in zip(arrays, shapes, strict=True))
    for (path, _), array, shape in zip(parts, arrays, shapes, strict=True):
        if not is_single and (array.ndim != len(shape) + 1 or array.shape[1:] != shape):
            where = f" at {path!r}" if path else ""
            raise ConfigError(
                f"an observation{where} has shape {shape}, and rows of them an axis more; got {array.shape}"
            )
    rows: Tree = unflatten(space, iter([array[None] for array in arrays] if is_single else arrays))
    return rows, is_single


def choose(head: ActionHead, parameters: Array, rng: np.random.Generator | None) -> tuple[Any, Array | None]:
    """Actions and their log-probabilities from a distribution's parameters [L, P]."""
    action = map_tree(np.array, head.mode(parameters) if rng is None else head.sample(parameters, rng))
    return action, log_prob(head, parameters, action)


def log_prob(head: ActionHead, parameters: Array, action: Any) -> Array | None:
    """[L] log-probabilities of actions; None where the head has none."""
    logp = head.log_prob_numpy(parameters, action)
    return None if logp is None else np.asarray(logp, np.float32)
