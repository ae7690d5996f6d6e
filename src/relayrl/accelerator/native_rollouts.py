"""Whole rollouts of native environments in one compiled call, where nobody has to see single steps.

Recognised are CartPole, Pendulum and simple_spread in float32 on the CPU, unchanged, and policies of MLPs with one choice or a
normal distribution. Rows are those that `runtime.collector` writes step by step, bit for bit, with any number of threads: noise
is drawn before, in the same order, and the kernels take sines and exponentials from NumPy's own loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from relayrl.accelerator.mlp_actor import HEADS, MlpActor, RolloutPolicy
from relayrl.compiled.drawn_ahead import DrawnAhead
from relayrl.compiled.loader import kernels, num_threads
from relayrl.data.steps.rollout_builder import EmptyBlock
from relayrl.data.trees import Array
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.models.acting.actor import Actor
from relayrl.models.networks.built_in import BuiltIns

if TYPE_CHECKING:
    from relayrl.envs.native.batched_environment import BatchedEnvironment

_ACTORS = BuiltIns(MlpActor)
MIN_NUMBERS_AHEAD, MAX_NUMBERS_AHEAD = 20_000, 1 << 22
"""Normal numbers of a rollout for which it is worth starting a thread, and up to which they may wait in memory."""
_NUMPY_FUNCTIONS = (np.sin, np.cos, np.exp, np.log1p)
"""In the order in which `numpy_function` numbers them."""


@dataclass(frozen=True, slots=True)
class RunningEpisodes:
    """Episodes that go on from rollout to rollout; the arrays change in place."""

    sums: Array
    """[B, N] float64 rewards so far."""
    began_at: Array
    """[B] int64 the step at which they began, of all steps of the run."""
    num_steps: int
    """Steps before the rollout."""


@dataclass(frozen=True, slots=True)
class BlockEnds:
    """What is known of lanes and episodes where they ended; everywhere else numbers mean nothing."""

    last_obs: Array
    """[T, L, O]"""
    returns: Array
    """[T, B, N] float64."""
    began_at: Array
    """[T, B] int64."""


class NativeRollouts:
    """Collects the rollouts of one native environment with one policy; made by `native_rollouts`."""

    def __init__(self, env: BatchedEnvironment, actor: MlpActor, policy: RolloutPolicy) -> None:
        (group,) = env.groups.values()
        self._env, self._actor, self._policy = env, actor, policy
        self._hides_end = env.blueprint.truncation_hides_termination
        self._shape = env.num_envs, group.num_agents, *(group.observation_space.shape or ())
        self._ends = self._new_ends(0)
        self._next_noise: DrawnAhead | None = None

    def are_possible(self, rng: np.random.Generator) -> bool:
        """Whether the next rollout is one of those that kernels know."""
        is_known = kernels() is not None and type(rng) is np.random.Generator and _are_known(self._env, self._actor)
        return is_known and self._env.steps_densely

    def collect(self, block: EmptyBlock, episodes: RunningEpisodes, rng: np.random.Generator) -> BlockEnds:
        """Fill the block; environments and `episodes` go on from its last row."""
        found, env, policy = kernels(), self._env, self._policy
        assert found is not None
        num_steps = len(block.reward)
        ends = self._ends_of(num_steps)
        *running, limit = env.running
        moments, clip = policy.moments
        found.collect_rows(
            env.worlds.compiled,
            tuple(running),
            limit,
            self._hides_end,
            policy.network,
            self._take_noise(block.reward.size, rng),
            policy.normal,
            moments,
            clip,
            (block.obs, block.action, block.logp, block.reward, block.terminated, block.truncated),
            (ends.last_obs, ends.returns, ends.began_at),
            (episodes.sums, episodes.began_at),
            episodes.num_steps,
            block.clock,
            num_steps,
            num_threads(),
        )
        self._draw_next_noise(block.reward.size, rng)
        (rewards,) = env.worlds.rewards.values()
        rewards[...] = block.reward[-1].reshape(rewards.shape)
        env.show_state()
        return ends

    def _take_noise(self, num_rows: int, rng: np.random.Generator) -> Array:
        ahead, self._next_noise = self._next_noise, None
        drawn = None if ahead is None else ahead.take(num_rows, rng)
        return self._policy.draw_noise(num_rows, rng) if drawn is None else drawn

    def _draw_next_noise(self, num_rows: int, rng: np.random.Generator) -> None:
        """Begin with it, while this rollout is learned from: a normal number takes 8 ns."""
        is_worth_it = MIN_NUMBERS_AHEAD <= num_rows * self._policy.num_normals <= MAX_NUMBERS_AHEAD
        if is_worth_it and DrawnAhead.is_possible(rng):
            self._next_noise = DrawnAhead(partial(self._policy.draw_noise, num_rows), num_rows, rng)

    def _ends_of(self, num_steps: int) -> BlockEnds:
        if len(self._ends.began_at) < num_steps:
            self._ends = self._new_ends(num_steps)
        return BlockEnds(*(getattr(self._ends, name)[:num_steps] for name in BlockEnds.__slots__))

    def _new_ends(self, num_steps: int) -> BlockEnds:
        B, N, *seen = self._shape
        leading = num_steps, B
        return BlockEnds(
            np.empty((num_steps, B * N, *seen), np.float32), np.empty((*leading, N)), np.empty(leading, np.int64)
        )


def native_rollouts(env: VectorEnvironment, actor: Actor) -> NativeRollouts | None:
    """Whole rollouts of `env` with `actor`; None where one of them is not exactly what the kernels know."""
    if not type(env).__module__.startswith("relayrl.envs.native") or kernels() is None:
        return None
    known, own = cast("BatchedEnvironment", env), cast(MlpActor, actor)
    if not _are_known(known, own) or known.worlds.compiled is None or not _are_numpys():
        return None
    (seen,) = known.worlds.observations.values()
    policy = own.for_rollouts(seen[0])
    return None if policy is None else NativeRollouts(known, own, policy)


def _are_known(env: BatchedEnvironment, actor: MlpActor) -> bool:
    """Whether environment, worlds, actor and head are RelayRL's own, with all of their methods. Asked before every rollout: a
    program may replace one of them at any time."""
    environments, worlds = _native()
    return env in environments and env.worlds in worlds and actor in _ACTORS and actor.head in HEADS


@cache
def _native() -> tuple[BuiltIns, BuiltIns]:
    """Environments and worlds that there are kernels for; imported where one is there already."""
    from relayrl.envs.native.batched_environment import BatchedEnvironment
    from relayrl.envs.native.classic.cart_pole import CartPoleWorlds
    from relayrl.envs.native.classic.pendulum import PendulumWorlds
    from relayrl.envs.native.particles.scenarios.simple_spread import SimpleSpreadWorlds

    return BuiltIns(BatchedEnvironment), BuiltIns(CartPoleWorlds, PendulumWorlds, SimpleSpreadWorlds)


@cache
def _are_numpys() -> bool:
    """Whether the loops that the kernels found give NumPy's numbers, wherever these lie."""
    found: Any = kernels()
    x = np.linspace(-60.0, 60.0, 1003, dtype=np.float32)
    for number, function in enumerate(_NUMPY_FUNCTIONS):
        given = np.exp(x) if function is np.log1p else x
        expected, cut = function(given), np.empty_like(x)
        for first, last in ((0, 1), (1, 8), (8, 31), (31, 64), (64, len(x))):
            part = np.ascontiguousarray(given[first:last])
            if not found.numpy_function(number, part, cut[first:last]):
                return False
        if not np.array_equal(cut.view(np.int32), expected.view(np.int32)):
            return False
    return True
