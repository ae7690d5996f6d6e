"""Acting with small MLPs by the compiled kernels, on live weights or on those that a file's metadata holds. Free of torch.

Forward pass, draw and log-probability are one call where the kernels know the head (one or several choices, a normal
distribution); other heads draw from the compiled forward pass. What is drawn is what the head draws from the same generator.

A frozen policy, one that was loaded or published, acts for any number of threads at once: a call holds the GIL from its first
to its last number, and is over before another thread could wake. Batches that would hold it for long are the reference's.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.trees import Array, Tree
from relayrl.models.acting.actor import Actor, Decision, ForwardActor, Outputs, choose
from relayrl.models.exports.exported import ExportedActor, PolicyMetadata, example_rows
from relayrl.models.exports.mlp_description import Mlp, MlpDescription
from relayrl.models.heads.action_head import ActionHead, Distribution, HeadDescription
from relayrl.models.heads.box_heads import GaussianHead
from relayrl.models.heads.discrete_heads import CategoricalHead, MultiCategoricalHead
from relayrl.models.network_settings import Activation
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.normalization import Normalization

MAX_PRODUCTS = 1 << 21
"""Multiplications of a frozen policy's call, which does not let other threads run: some 50 µs."""
DRAWS_AHEAD = 64
TOLERANCE = 1e-5
empty, as_contiguous, FLOAT, INTEGER = (
    np.empty,
    np.ascontiguousarray,
    np.float32,
    np.int64,
)  # looked up once: a request has 9 µs
_log = logging.getLogger("relayrl.accelerator")
HEADS = BuiltIns(CategoricalHead, MultiCategoricalHead, GaussianHead)

Encode: TypeAlias = Callable[[Any], Array]
"""Features [L, F] of observations as numbers, not yet normalised."""
Draw: TypeAlias = Callable[[Array, Array | None, np.random.Generator, Array, int], Array]
"""Actions of features [L, F] under masks, by so many threads; log-probabilities are written into the array before that [L]."""


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """What kernels need in order to act in whole rollouts: arrays are those of the live policy."""

    network: Any
    num_normals: int
    """Standard normal numbers that an action takes; 0: it takes a uniform one."""
    normal: tuple[Array | None, Array, Array] | None
    """Log deviation, scale and center of a normal distribution; None where actions are choices."""
    normalize: Normalization | None

    def draw_noise(self, num_rows: int, rng: np.random.Generator) -> Array:
        """The numbers from which `num_rows` actions are drawn: the same as by as many calls with fewer rows."""
        if self.num_normals:
            return rng.standard_normal((num_rows, self.num_normals), FLOAT)
        return rng.random(num_rows, FLOAT)

    @property
    def moments(self) -> tuple[tuple[Array, Array] | None, float]:
        """Shift and scale of observations, None where they are taken as they are, and where they are clipped."""
        own = self.normalize
        return (None, 0.0) if own is None else ((own.shift, own.scale), own.clip)


class MlpActor(ForwardActor):
    """Acts with a policy of MLPs; made by `live_actor` and `accelerated`, which know whose actor it can be."""

    equal_from_rows = 3  # one and two rows are multiplied in another order (FEW_ROWS in compiled/acting.h)

    def __init__(self, mlp: MlpDescription, head: ActionHead, encode: Encode, reference: Actor | None = None) -> None:
        """With a `reference`, weights are frozen, and large batches are its business. The kernels must be there."""
        self.is_instant = is_frozen = reference is not None
        mlp = mlp.with_values_in_critic() if is_frozen else mlp
        self.head, self._reference, self._mlp = head, reference, mlp
        self._encode, self._normalize = encode, mlp.observations
        self.observation_space = None if reference is None else reference.observation_space
        self._network, self._num_outputs = _network(mlp.actor, is_frozen), mlp.actor.sizes[-1]
        self._critic = None if mlp.critic is None else _network(mlp.critic, is_frozen)
        self._max_rows = MAX_PRODUCTS // mlp.num_weights if is_frozen else sys.maxsize
        self._threads = 1 if is_frozen else None
        description = known_head(head)
        self._draw = None if description is None else self._draw_of(description)
        self.knows_logp = self._draw is not None

    def hold(self) -> None:
        self._network.hold()

    def release(self) -> None:
        self._network.release()

    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        x, threads = self._features(obs), self._threads or num_threads()
        return Outputs(self._parameters(x, mask, threads), self._value(x, threads))

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        x = self._features(obs)
        num_rows = len(x)
        if num_rows > self._max_rows:
            assert self._reference is not None
            return self._reference.decide(obs, mask, memory, rng)
        threads = self._threads or num_threads()
        if rng is None or self._draw is None:
            return Decision(*choose(self.head, self._parameters(x, mask, threads), rng), self._value(x, threads))
        logp = empty(num_rows, FLOAT)
        action = self._draw(x, mask, rng, logp, threads)
        return Decision(action, logp, None if self._critic is None else self._value(x, threads), None)

    def _features(self, obs: Tree) -> Array:
        x = as_contiguous(self._encode(obs), FLOAT)
        return x if self._normalize is None else self._normalize(x)

    def _parameters(self, x: Array, mask: Array | None, threads: int) -> Array:
        outputs = np.empty((len(x), self._num_outputs), np.float32)
        self._network.forward(x, outputs, threads)
        if self.head.learns_log_std:
            assert self._mlp.log_std is not None
            scale = self.head.scales["action_scale"]
            mean = outputs * scale + self.head.scales["action_center"]
            return np.concatenate([mean, np.broadcast_to(self._mlp.log_std + np.log(scale), mean.shape)], -1)
        return self.head.parameters_numpy(outputs, mask)

    def _value(self, x: Array, threads: int) -> Array | None:
        if self._critic is None:
            return None
        value = empty(len(x), FLOAT)
        self._critic.forward(x, value, threads)
        if self._mlp.returns is not None:
            shift, scale = self._mlp.returns
            value /= scale
            value += shift
        return value

    def for_rollouts(self, obs: Array) -> RolloutPolicy | None:
        """What draws actions for lanes that see rows like `obs` [L, O]; None where a decision is more than that."""
        description = known_head(self.head)
        is_row = obs.ndim == 2 and obs.dtype == FLOAT and self._encode(obs) is obs
        if description is None or not is_row or self._reference is not None or self._critic is not None:
            return None
        if description.distribution is Distribution.NORMAL:
            scales = description.scales
            normal = self._mlp.log_std, scales["action_scale"], scales["action_center"]
            return RolloutPolicy(self._network, self._num_outputs, normal, self._normalize)
        is_choice = description.distribution is Distribution.CHOICE and not any(description.starts)
        return RolloutPolicy(self._network, 0, None, self._normalize) if is_choice else None

    def _draw_of(self, head: HeadDescription) -> Draw:
        return self._normal(head) if head.distribution is Distribution.NORMAL else self._choices(head)

    def _choices(self, head: HeadDescription) -> Draw:
        choose_by, is_single = self._network.choose, head.distribution is Distribution.CHOICE
        sizes, num_parts = head.part_sizes, len(head.part_sizes)
        start = (head.starts[0] if is_single else np.array(head.starts)) if any(head.starts) else None

        def draw(x: Array, mask: Array | None, rng: np.random.Generator, logp: Array, threads: int) -> Array:
            num_rows = len(logp)
            choice: Array = empty(num_rows if is_single else (num_rows, num_parts), INTEGER)
            # Part by part, as heads draw them: the first axis of what is drawn is always that of rows.
            draws = rng.random(num_rows, FLOAT) if is_single else np.stack([rng.random(num_rows, FLOAT) for _ in sizes])
            allowed = None if mask is None else np.ascontiguousarray(mask)
            choose_by(x, sizes, draws, allowed, choice, logp, threads)
            return choice if start is None else choice + start

        return draw

    def _normal(self, head: HeadDescription) -> Draw:
        scale, center = head.scales["action_scale"], head.scales["action_center"]
        draw_normal, num_actions = self._network.draw_normal, len(scale)
        scales = (self._mlp.log_std, scale, center)

        def draw(x: Array, mask: Array | None, rng: np.random.Generator, logp: Array, threads: int) -> Array:
            noise = rng.standard_normal((len(logp), num_actions), np.float32)
            action = np.empty_like(noise)
            draw_normal(x, noise, *scales, action, logp, threads)
            return action

        return draw


def known_head(head: ActionHead) -> HeadDescription | None:
    """What the kernels need in order to draw a head's actions; None where there are none for it."""
    found = kernels()
    is_known = found is not None and head in HEADS and len(head.part_sizes) <= found.MAX_PARTS
    return head.describe() if is_known else None


def fits(mlp: MlpDescription) -> bool:
    """Whether there are kernels, and they know MLPs as deep as these."""
    found = kernels()
    networks = [mlp.actor] if mlp.critic is None else [mlp.actor, mlp.critic]
    return found is not None and all(len(each.layers) <= found.MAX_LAYERS for each in networks)


def accelerated(reference: ExportedActor) -> MlpActor | None:
    """The compiled actor of a file that describes its MLPs; None where it does not, or where that acts otherwise."""
    metadata, head = reference.metadata, reference.head
    try:
        actor = described_actor(metadata, head, reference)
        if actor is None:
            return None
        rows = example_rows(metadata, head, num_rows=4)
        own, expected = actor.forward(*rows, None), reference.forward(*rows, None)
        fault = None if _agree(own, expected) else "it acts otherwise than the file's graph"
    except ValueError as error:  # the kernels refuse shapes that do not fit by it as well
        fault = str(error)
    if fault is None:
        return actor
    _log.warning("the policy's description is not used, and onnxruntime acts: %s", fault)
    return None


def described_actor(metadata: PolicyMetadata, head: ActionHead, reference: Actor) -> MlpActor | None:
    """The compiled actor of a file's description, which nobody has compared with the file's graph; None where there is no
    description, or no kernel for it. `ValueError` where its numbers do not fit each other."""
    if not metadata.mlp:
        return None
    mlp = MlpDescription.from_text(metadata.mlp)
    if not fits(mlp) or mlp.num_weights > MAX_PRODUCTS:
        return None
    return MlpActor(mlp, head, _as_rows, reference)


def _agree(own: Outputs, expected: Outputs) -> bool:
    return _are_close(own.parameters, expected.parameters) and _are_close(own.value, expected.value)


def _are_close(a: Array | None, b: Array | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def _as_rows(obs: Any) -> Array:
    """Features of observations that are one array of numbers."""
    x = as_contiguous(obs, FLOAT)
    return x if x.ndim == 2 else x.reshape(len(x), -1)


def _network(mlp: Mlp, is_frozen: bool) -> Any:
    found = kernels()
    assert found is not None
    return found.MLP(mlp.layers, mlp.activation is Activation.TANH, is_frozen)


class RowGenerator(np.random.Generator):
    """A generator for many threads: the numbers of single rows are drawn many at a time, in the same order."""

    def __init__(self, seed: np.random.SeedSequence) -> None:
        super().__init__(np.random.PCG64(seed))
        self._uniform: list[Array] = []
        self._normal: list[Array] = []

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        if not ((size == 1 or size == (1,)) and dtype is FLOAT):
            return super().random(size, dtype, out)
        try:
            return self._uniform.pop()
        except IndexError:  # asked for rather than looked at: another thread may take the last one
            ahead = list(super().random(DRAWS_AHEAD, dtype)[::-1, None])  # the last of a list is the first to go
            first = ahead.pop()
            self._uniform = ahead
            return first

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        if type(size) is not tuple or len(size) != 2 or size[0] != 1 or dtype is not FLOAT:
            return super().standard_normal(size, dtype, out)
        try:
            drawn = self._normal.pop()
        except IndexError:
            ahead = list(super().standard_normal((DRAWS_AHEAD, size[1]), dtype)[::-1, None])
            drawn = ahead.pop()
            self._normal = ahead
        return drawn if drawn.shape == size else super().standard_normal(size, dtype, out)
