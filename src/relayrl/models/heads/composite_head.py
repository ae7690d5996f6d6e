"""Heads over the leaves of an action space: Dict, Tuple, arrays of any number of axes, and integer Boxes.

Each leaf of the space has a plain head of its own, over the leaf's numbers side by side; a composite head joins them.
Parameters, network outputs, masks, noise and what critics see are the leaves' side by side, in the order of the space. Leaves
are independent given the observation: log-probabilities and entropies add up. Actions are trees of the space, as columns hold
them.

    leaf                       plain head
    Discrete                   categorical
    MultiDiscrete              categorical, one choice per entry
    MultiBinary                independent bits
    Box of real numbers        normal; squashed normal or deterministic for learning from replay
    Box of integers            categorical, one choice per entry among low … high; cannot be masked
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, Tree, leaf_dtype, leaves, space_leaves, unflatten
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import ActionHead, LikelihoodHead

if TYPE_CHECKING:
    from torch import Tensor

MAX_INTEGER_CHOICES = 1024
"""Values that an entry of an integer Box may have: each is an output of the network."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One leaf of the space: its plain head, and where its numbers lie among those of all leaves."""

    head: ActionHead
    leaf: Space
    outputs: slice
    """Of the network's outputs."""
    inputs: slice
    """Of what `parameters` takes."""
    parameters: slice
    mask: slice | None
    """None where the leaf cannot be masked."""
    log_std: slice

    def flat(self, action: Any) -> Any:
        """Actions [..., *leaf shape] as the plain head takes them; arrays or tensors."""
        if isinstance(self.leaf, spaces.Discrete):
            return action
        return action.reshape(*action.shape[: action.ndim - len(self.leaf.shape or ())], -1)

    def shaped(self, action: Any) -> Any:
        """The reverse of `flat`."""
        shape = self.leaf.shape or ()
        if isinstance(self.leaf, spaces.Discrete) or len(shape) == 1:
            return action
        # A graph that is traced must not hold the number of rows.
        return action.reshape(*((-1,) if action.ndim == 2 else action.shape[:-1]), *shape)


class TreeHead(ActionHead):
    """Plain heads side by side: everything that does not need log-probabilities."""

    def __init__(self, space: Space, make_head: Callable[[Space], ActionHead]) -> None:
        """`make_head` gives the plain head of a leaf whose numbers lie in one axis."""
        self.space = space
        self.parts = list(_parts(space, make_head))
        heads = [part.head for part in self.parts]
        self.kind = heads[0].kind
        self.num_outputs = sum(head.num_outputs for head in heads)
        self.num_parameters = sum(head.num_parameters for head in heads)
        self.mask_width = sum(_width(part.mask) for part in self.parts if part.mask is not None) or None
        self.part_sizes = tuple(size for part in self.parts if part.mask is not None for size in part.head.part_sizes)
        self.learns_log_std = any(head.learns_log_std for head in heads)

    @property
    def noise_scale(self) -> float:
        """Of all leaves alike."""
        return self.parts[0].head.noise_scale

    @noise_scale.setter
    def noise_scale(self, noise_scale: float) -> None:
        for part in self.parts:
            part.head.noise_scale = noise_scale

    @property
    def num_network_outputs(self) -> int:
        return sum(part.head.num_network_outputs for part in self.parts)

    @property
    def num_log_stds(self) -> int:
        return sum(_width(part.log_std) for part in self.parts)

    @property
    def scales(self) -> dict[str, Array]:
        return _named((i, part.head.scales) for i, part in enumerate(self.parts))

    @property
    def bounds(self) -> dict[str, Array]:
        return _named((i, part.head.bounds) for i, part in enumerate(self.parts))

    def scaled(self, outputs: Tensor, constants: Mapping[str, Tensor]) -> Tensor:
        import torch

        own = (
            part.head.scaled(outputs[..., part.outputs], self._constants(i, constants))
            for i, part in enumerate(self.parts)
        )
        return torch.cat(list(own), -1)

    def parameters(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        import torch

        return torch.cat([part.head.parameters(outputs[..., part.inputs], _own(mask, part)) for part in self.parts], -1)

    def parameters_numpy(self, outputs: Array, mask: Array | None) -> Array:
        own = [part.head.parameters_numpy(outputs[..., part.inputs], _own(mask, part)) for part in self.parts]
        return np.concatenate(own, -1)

    def sample(self, parameters: Array, rng: np.random.Generator) -> Any:
        return self._tree(part.head.sample(parameters[..., part.parameters], rng) for part in self.parts)

    def sample_uniform(self, num_rows: int, mask: Array | None, rng: np.random.Generator) -> Any:
        return self._tree(part.head.sample_uniform(num_rows, _own(mask, part), rng) for part in self.parts)

    def mode(self, parameters: Array) -> Any:
        return self._tree(part.head.mode(parameters[..., part.parameters]) for part in self.parts)

    def mode_torch(self, parameters: Tensor, constants: Mapping[str, Tensor]) -> Any:
        own = (
            part.shaped(part.head.mode_torch(parameters[..., part.parameters], self._constants(i, constants)))
            for i, part in enumerate(self.parts)
        )
        return unflatten(self.space, own)

    def to_environment(self, action: Any) -> Any:
        return self._tree(part.head.to_environment(own) for part, own in self._actions(action))

    def encode_action(self, action: Any) -> Array:
        return np.concatenate([part.head.encode_action(own) for part, own in self._actions(action)], -1)

    @property
    def critic_width(self) -> int:
        return sum(part.head.critic_width for part in self.parts)

    def draw_noise(self, num_rows: int, rng: np.random.Generator) -> Array:
        return np.concatenate([part.head.draw_noise(num_rows, rng) for part in self.parts], -1)

    def rsample(self, parameters: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        # A leaf takes as much noise as it has actions, or none.
        widths = [part.head.critic_width if noise.shape[-1] else 0 for part in self.parts]
        each = [
            part.head.rsample(parameters[..., part.parameters], own)
            for part, own in zip(self.parts, noise.split(widths, -1), strict=True)  # type: ignore[no-untyped-call]
        ]
        return torch.cat([action for action, _ in each], -1), torch.stack([logp for _, logp in each]).sum(0)

    def log_prob(self, parameters: Tensor, action: Any) -> Tensor:
        """log π(a) = Σ over leaves."""
        total = parameters.new_zeros(parameters.shape[:-1])
        for part, own in self._actions(action):
            chosen = own.long() if part.head.part_sizes else own
            total = total + part.head.log_prob(parameters[..., part.parameters], chosen)
        return total

    def entropy(self, parameters: Tensor) -> Tensor:
        """H = Σ over leaves."""
        total = parameters.new_zeros(parameters.shape[:-1])
        for part in self.parts:
            total = total + part.head.entropy(parameters[..., part.parameters])
        return total

    def uniform_log_prob(self, action: Any, mask: Array | None) -> Array | None:
        each = [part.head.uniform_log_prob(own, _own(mask, part)) for part, own in self._actions(action)]
        known = [logp for logp in each if logp is not None]
        return np.asarray(sum(known), np.float32) if len(known) == len(each) else None

    def _actions(self, action: Any) -> Iterator[tuple[Part, Any]]:
        """Each part with its actions, as its plain head takes them; arrays or tensors."""
        for part, (_, leaf) in zip(self.parts, leaves(action), strict=True):
            yield part, part.flat(leaf)

    def _tree(self, actions: Iterable[Array]) -> Tree:
        """A tree of the space from what the plain heads give."""
        pairs = zip(self.parts, actions, strict=True)
        return unflatten(  # type: ignore[no-any-return]
            self.space, (part.shaped(np.asarray(own, _stored(part.leaf, own))) for part, own in pairs)
        )

    def _constants(self, number: int, constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of one part, by the names that its head knows."""
        prefix, part = _prefix(number), self.parts[number]
        own = {name.removeprefix(prefix): value for name, value in constants.items() if name.startswith(prefix)}
        if part.head.learns_log_std and "log_std" in constants:  # where outputs are scaled
            own["log_std"] = constants["log_std"][part.log_std]
        return own


class CompositeHead(TreeHead, LikelihoodHead):
    """Plain heads with log-probabilities, side by side."""

    def log_prob_numpy(self, parameters: Array, action: Any) -> Array:
        each = []
        for part, own in self._actions(action):
            chosen = own.astype(np.int64, copy=False) if part.head.part_sizes else own
            each.append(_likelihood(part).log_prob_numpy(parameters[..., part.parameters], chosen))
        return np.asarray(sum(each))

    def entropy_numpy(self, parameters: Array) -> Array:
        return np.asarray(sum(_likelihood(part).entropy_numpy(parameters[..., part.parameters]) for part in self.parts))


def _likelihood(part: Part) -> Any:
    """The part's head, which has log-probabilities: `CompositeHead` is made of no others."""
    return part.head


def _parts(space: Space, make_head: Callable[[Space], ActionHead]) -> Iterator[Part]:
    starts = dict.fromkeys(("outputs", "inputs", "parameters", "mask", "log_std"), 0)

    def take(name: str, width: int) -> slice:
        starts[name] += width
        return slice(starts[name] - width, starts[name])

    for _, leaf in space_leaves(space):
        head = make_head(_in_one_axis(leaf))
        is_masked = head.mask_width is not None and not isinstance(leaf, spaces.Box)
        yield Part(
            head,
            leaf,
            take("outputs", head.num_network_outputs),
            take("inputs", head.num_outputs),
            take("parameters", head.num_parameters),
            take("mask", head.mask_width or 0) if is_masked else None,
            take("log_std", head.num_log_stds if head.learns_log_std else 0),
        )


def _in_one_axis(leaf: Space) -> Space:
    """The space of the leaf's numbers side by side, of a kind that has a plain head."""
    if isinstance(leaf, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(leaf.nvec.reshape(-1), leaf.dtype, start=leaf.start.reshape(-1))
    if isinstance(leaf, spaces.MultiBinary):
        return spaces.MultiBinary(math.prod(leaf.shape))
    if not isinstance(leaf, spaces.Box):
        return leaf
    if np.issubdtype(leaf.dtype, np.floating):
        return spaces.Box(leaf.low.reshape(-1), leaf.high.reshape(-1), dtype=leaf.dtype)
    low, high = leaf.low.reshape(-1).astype(np.int64), leaf.high.reshape(-1).astype(np.int64)
    sizes = high - low + 1
    if (sizes > MAX_INTEGER_CHOICES).any() or (sizes < 1).any():
        raise ConfigError(
            f"action space {leaf}: an integer Box is a choice among all its values, at most {MAX_INTEGER_CHOICES} per entry; "
            "give it closer bounds, or use a Box of real numbers"
        )
    return spaces.MultiDiscrete(sizes, np.int64, start=low)


def is_plain(space: Space) -> bool:
    """Whether a space has a plain head: it is not nested, and its numbers are in one axis and of their usual kind."""
    if isinstance(space, spaces.Box):
        return len(space.shape) == 1 and bool(np.issubdtype(space.dtype, np.floating))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return len(space.shape) == 1
    return not isinstance(space, spaces.Dict | spaces.Tuple)


def _stored(leaf: Space, action: Array) -> np.dtype[Any]:
    """Real numbers stay as precise as they are; choices are of the leaf's dtype."""
    return action.dtype if np.issubdtype(leaf_dtype(leaf), np.floating) else leaf_dtype(leaf)


def _own(mask: Any, part: Part) -> Any:
    return None if mask is None or part.mask is None else mask[..., part.mask]


def _width(where: slice) -> int:
    return int(where.stop - where.start)


def _prefix(number: int) -> str:
    return f"part{number}_"


def _named(parts: Iterable[tuple[int, Mapping[str, Array]]]) -> dict[str, Array]:
    return {f"{_prefix(number)}{name}": numbers for number, own in parts for name, numbers in own.items()}


def only_boxes(space: Space) -> bool:
    """Whether a space is made of Boxes of real numbers alone."""
    found: Sequence[Space] = [leaf for _, leaf in space_leaves(space)]
    return all(isinstance(leaf, spaces.Box) and np.issubdtype(leaf.dtype, np.floating) for leaf in found)
