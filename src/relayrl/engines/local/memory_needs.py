"""Whether what the settings ask for fits into memory, asked before it is allocated.

The system grants more memory than there is, and ends the process when it is used: a run with a horizon or a replay that is
too long would die without a word, some of them hours later. Only what settings decide is counted, and only roughly.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from pathlib import Path
from typing import Any

from gymnasium.spaces import flatdim

from relayrl.data.trees import Space, leaf_dtype, space_leaves
from relayrl.engines.settings.cluster_settings import ReplayPlace
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.errors import ConfigError
from relayrl.training.replay.frame_store import FrameStore, frame_stores

_GIB = 1 << 30
_ROW_BYTES = 40
"""Rewards, flags, values, log-probabilities and versions of a row."""
_COPIES_OF_WEIGHTS = 4
"""Weights, gradients, and the two moments of Adam."""
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def require_fits_memory(settings: RunSettings, env: VectorEnvironment) -> None:
    """Raise `ConfigError` where rollouts, replay, batches or networks alone need more memory than there is."""
    have = memory_bytes()
    for (what, advice), num_bytes in _needs(settings, env).items():
        if num_bytes > have:
            raise ConfigError(
                f"{what} would take {num_bytes / _GIB:,.0f} GiB of memory, and there are {have / _GIB:,.0f}; lower {advice}"
            )


def memory_bytes() -> int:
    """Memory of this machine, or what its container is allowed."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no container, or "max"
            found.append(int(path.read_text()))
    return min(found)


def _needs(settings: RunSettings, env: VectorEnvironment) -> dict[tuple[str, str], int]:
    groups = env.groups.values()
    params: Any = settings.params
    row = sum(g.num_agents * (_ROW_BYTES + _bytes(g.observation_space) + _bytes(g.action_space)) for g in groups)
    features = max(_width(g.observation_space) for g in groups)
    widths = [max(sizes) for sizes in [settings.network_of(g.name).hidden_sizes or (1,) for g in groups]]
    layers = [(features, *settings.network_of(g.name).hidden_sizes, _width(g.action_space)) for g in groups]
    weights = sum(a * b for sizes in layers for a, b in itertools.pairwise(sizes))
    advice = "network.hidden_sizes, or the sizes of the environment's spaces"
    needs = {("the networks", advice): 4 * _COPIES_OF_WEIGHTS * weights}
    # A plugin's params need not be ours.
    replay_size, batch_size = getattr(params, "replay_size", None), getattr(params, "batch_size", 0)
    if replay_size is not None:
        kept = min(replay_size, settings.trainer.max_steps + env.num_envs)
        stored = sum(
            g.num_agents * (_ROW_BYTES + _stored_bytes(g.observation_space) + _bytes(g.action_space)) for g in groups
        )
        if settings.cluster.replay is ReplayPlace.LEARNER:
            needs["the replay", "params.buffer_size"] = kept * stored
        needs["a batch", "params.batch_size"] = batch_size * 4 * (features + max(widths))
    else:
        num_rows = settings.trainer.time_horizon * env.num_envs
        needs["a rollout", "trainer.time_horizon or environment.num_envs"] = num_rows * row
    return needs


def _bytes(space: Space) -> int:
    return sum(math.prod(leaf.shape or ()) * leaf_dtype(leaf).itemsize for _, leaf in space_leaves(space))


def _stored_bytes(space: Space) -> int:
    """Of an observation in replay, which keeps frames that are stacked once (`frame_store`)."""
    stores = frame_stores(space, 1)
    return sum(
        math.prod(leaf.shape or ()) * leaf_dtype(leaf).itemsize // _frames_seen_again(stores.get(path))
        for path, leaf in space_leaves(space)
    )


def _frames_seen_again(store: FrameStore | None) -> int:
    """How often a frame is part of a stack; three are rather the colours of one."""
    return 1 if store is None or store.num_frames == 3 else store.num_frames


def _width(space: Space) -> int:
    """Numbers that networks take or give; choices count one by one."""
    return sum(int(flatdim(leaf)) for _, leaf in space_leaves(space))
