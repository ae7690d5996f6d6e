"""Hypothesis strategies for spaces, rollouts and trajectories, and an equality that sees every bit.

Hypothesis chooses structure, sizes and a seed; contents are random bits from that seed, so that floats hold NaNs with
payloads, denormals and negative zeros. Columns of rollouts carry bits, not meanings, and integers lie outside of their spaces;
in trajectories, which sinks take, choices are among their options.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from relayrl.data.arrow.space_json import DTYPES
from relayrl.data.columns import LaneHeader, Rollout, Successors, Trajectory, trajectory_id
from relayrl.data.row_rules import number_rows, rows_with_successor
from relayrl.data.trees import Space, allocate, leaves, map_tree
from relayrl.sinks.buffered import num_options
from relayrl.testing.trajectory_examples import random_values


def examples(count: int) -> settings:
    """Settings of a property test: the same `count` examples in every run."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=slow)


def random_bits(rng: np.random.Generator, tree: Any) -> Any:
    """A tree like `tree` with every bit at random."""

    def fill(leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype == bool:
            return np.asarray(rng.random(leaf.shape) < 0.5)
        return np.frombuffer(rng.bytes(leaf.nbytes), dtype=leaf.dtype).reshape(leaf.shape).copy()

    return map_tree(fill, tree)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
integer_dtypes = st.sampled_from([dtype for dtype in DTYPES.values() if dtype.kind in "iu"])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    """Any dtype, any shape, bounds for all or each element, infinite ones too."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(shapes)
    if dtype.kind == "f":
        bounds = st.floats(width=dtype.itemsize * 8, allow_nan=False)
    elif dtype.kind == "b":
        bounds = st.integers(0, 1)
    else:
        bounds = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if draw(st.booleans()):
        low, high = sorted([draw(bounds), draw(bounds)])
        if dtype.kind == "i" and draw(st.booleans()):
            low = -np.inf
        return spaces.Box(low, high, shape, dtype.type)
    size = int(np.prod(shape))
    pairs = [sorted([draw(bounds), draw(bounds)]) for _ in range(size)]
    low, high = (np.array([pair[side] for pair in pairs], dtype=dtype).reshape(shape) for side in (0, 1))
    return spaces.Box(low, high, shape, dtype.type)


@st.composite
def discretes(draw: st.DrawFn) -> spaces.Discrete:
    dtype = draw(integer_dtypes)
    limits = np.iinfo(dtype)
    return spaces.Discrete(
        draw(st.integers(1, int(limits.max))),
        start=draw(st.integers(int(limits.min), int(limits.max))),
        dtype=dtype.type,
    )


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    dtype, shape = draw(integer_dtypes), draw(shapes)
    size = int(np.prod(shape))
    limits = np.iinfo(dtype)
    nvec = draw(st.lists(st.integers(1, int(limits.max)), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(int(limits.min), int(limits.max)), min_size=size, max_size=size))
    as_array = (np.array(numbers, dtype=dtype).reshape(shape) for numbers in (nvec, start))
    nvec_array, start_array = as_array
    return spaces.MultiDiscrete(nvec_array, dtype=dtype.type, start=start_array)


multi_binaries = st.one_of(
    st.integers(1, 5).map(spaces.MultiBinary),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(spaces.MultiBinary),
)
leaf_spaces = st.one_of(boxes(), discretes(), multi_discretes(), multi_binaries)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
keys = st.one_of(text, st.sampled_from(["a", "a.b", "b", "0", "%2E", "", "obs"]))
any_space = st.recursive(
    leaf_spaces,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(spaces.Tuple),
        st.lists(st.tuples(keys, parts), max_size=3, unique_by=lambda pair: pair[0]).map(spaces.Dict),
    ),
    max_leaves=4,
)


def _rng(draw: st.DrawFn) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**32)))


def _optional(
    draw: st.DrawFn, rng: np.random.Generator, leading: tuple[int, ...], action_space: Space | None = None
) -> dict[str, Any]:
    """Some of the columns that may be absent."""
    columns: dict[str, Any] = {}
    if draw(st.booleans()):
        columns["action_mask"] = rng.random((*leading, draw(st.integers(0, 9)))) < 0.5
    if action_space is not None and (width := num_options(action_space)) is not None and "action_mask" in columns:
        columns["action_mask"] = rng.random((*leading, width)) < 0.5 if width <= 9 else None
    for name in ("logp", "value"):
        if draw(st.booleans()):
            columns[name] = random_bits(rng, np.zeros(leading, np.float32))
    if draw(st.booleans()):
        columns["memory"] = random_bits(rng, allocate(draw(any_space), leading))
    return columns


def _mask_after(draw: st.DrawFn, rng: np.random.Generator, columns: dict[str, Any], leading: tuple[int, ...]) -> Any:
    """What was allowed after some of the rows of which these are optional columns."""
    mask = columns.get("action_mask")
    return None if mask is None or draw(st.booleans()) else rng.random((*leading, mask.shape[-1])) < 0.5


@st.composite
def rollouts(draw: st.DrawFn, space: st.SearchStrategy[Space] = any_space) -> Rollout:
    """Any rollout that keeps the rules of the data model."""
    T, B, N, rng = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 3)), _rng(draw)
    agent_ids = tuple(draw(st.lists(text, min_size=N, max_size=N, unique=True)))
    env_ids = tuple(uuid.UUID(bytes=rng.bytes(16)) for _ in range(B))
    header = LaneHeader(draw(text), env_ids, agent_ids, draw(space), draw(space))
    leading, chance = (T, B * N), draw(st.sampled_from([0.0, 0.3, 1.0]))
    state_space = draw(any_space) if draw(st.booleans()) else None
    failed, terminated = rng.random(leading) < chance / 4, rng.random(leading) < chance
    truncated = (rng.random(leading) < chance / 2) | failed
    clock, first = _clock(draw, rng, T, B, N)
    if clock:  # all lanes end with their environment's episode
        is_last = np.diff(clock["env_episode"], axis=0, append=clock["env_episode"][-1:]) > 0
        truncated |= np.repeat(is_last, N, axis=1)
    step, lane = np.nonzero(rows_with_successor(terminated | truncated))
    optional = _optional(draw, rng, leading)
    return Rollout(
        header=header,
        obs=random_bits(rng, allocate(header.observation_space, leading)),
        action=random_bits(rng, allocate(header.action_space, leading)),
        reward=random_bits(rng, np.zeros(leading, np.float32)),
        terminated=terminated,
        truncated=truncated,
        valid=(rng.random(leading) < draw(st.sampled_from([0.0, 0.5, 1.0]))) & ~failed,
        failed=failed,
        policy_version=rng.integers(0, 2**63 - 1, leading),
        **first,
        successors=Successors(
            step,
            lane,
            random_bits(rng, allocate(header.observation_space, (len(step),))),
            None if state_space is None else random_bits(rng, allocate(state_space, (len(step),))),
            _mask_after(draw, rng, optional, (len(step),)),
        ),
        state=None if state_space is None else random_bits(rng, allocate(state_space, (T, B))),
        **optional,
        **clock,
    )


def _clock(draw: st.DrawFn, rng: np.random.Generator, T: int, B: int, N: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """An environment's own count of episodes and steps, or none, and the first numbers of lanes."""
    episode, step = (rng.integers(0, draw(st.sampled_from([1, 2**40])), B * N) for _ in range(2))
    if draw(st.booleans()):
        return {}, {"first_episode": episode, "first_step": step}
    over = rng.random((T, B)) < draw(st.sampled_from([0.0, 0.3]))
    env_episode, env_step = number_rows(over, episode[::N], step[::N])
    first_step = np.repeat(env_step[0], N) * (rng.random(B * N) < 0.5)
    clock = {"env_episode": env_episode, "env_step": env_step}
    return clock, {"first_episode": np.repeat(env_episode[0], N), "first_step": first_step}


def _steps(draw: st.DrawFn, rng: np.random.Generator, first_step: int, num_steps: int, failed: bool) -> dict[str, Any]:
    """Nothing, only where the trajectory ends, or also on which steps its rows are."""
    kind = draw(st.sampled_from(["unknown", "counting on", "with gaps"]))
    if kind == "unknown":
        return {}
    step = first_step + np.cumsum(rng.integers(1, 5, num_steps))
    last = int(step[-1]) if kind == "with gaps" else first_step + num_steps - 1
    found = {"end_step": last + 1 + failed + draw(st.integers(0, 2**20))}
    return found if kind == "counting on" else found | {"step": step}


@st.composite
def trajectories(draw: st.DrawFn, space: st.SearchStrategy[Space] = any_space) -> Trajectory:
    """Any trajectory that keeps the rules of the data model."""
    rng, leading = _rng(draw), (draw(st.integers(1, 8)),)
    env_id, agent_id = uuid.UUID(bytes=rng.bytes(16)), draw(text)
    episode, first_step = draw(st.integers(0, 2**62)), draw(st.integers(0, 2**62))
    observation_space, action_space = draw(space), draw(space)
    failed = draw(st.booleans())
    state_space = draw(any_space) if draw(st.booleans()) else None
    optional = _optional(draw, rng, leading, action_space)
    return Trajectory(
        trajectory_id=trajectory_id(env_id, agent_id, episode, first_step),
        env_id=env_id,
        agent_id=agent_id,
        group=draw(text),
        observation_space=observation_space,
        action_space=action_space,
        episode=episode,
        first_step=first_step,
        obs=random_values(rng, observation_space, leading),
        action=random_values(rng, action_space, leading),
        reward=random_bits(rng, np.zeros(leading, np.float32)),
        policy_version=rng.integers(0, 2**63 - 1, leading),
        terminated=draw(st.booleans()),
        truncated=failed or draw(st.booleans()),
        failed=failed,
        final_obs=random_values(rng, observation_space, ()),
        state=None if state_space is None else random_bits(rng, allocate(state_space, leading)),
        final_state=None if state_space is None else random_bits(rng, allocate(state_space, ())),
        final_mask=_mask_after(draw, rng, optional, ()),
        **optional,
        **_steps(draw, rng, first_step, *leading, failed),
    )


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Paths at which two things differ in type, structure, dtype, shape or any bit; spaces by all they are made of."""
    if type(one) is not type(other):
        return [f"{path}: {type(one).__name__} / {type(other).__name__}"]
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return [d for n in names for d in differences(getattr(one, n), getattr(other, n), f"{path}.{n}")]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{path}: keys {list(one)} / {list(other)}"]
        return [d for key in one for d in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, tuple):
        if len(one) != len(other):
            return [f"{path}: {len(one)} / {len(other)}"]
        return [d for i, pair in enumerate(zip(one, other, strict=True)) for d in differences(*pair, f"{path}.{i}")]
    if isinstance(one, spaces.Space):
        return differences(_parts(one), _parts(other), f"{path}~")
    if isinstance(one, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return [] if same else [f"{path}: {one!r} / {other!r}"]
    return [] if one == other else [f"{path}: {one!r} / {other!r}"]


def _parts(space: Space) -> dict[str, Any]:
    names = ("spaces", "dtype", "_shape", "low", "high", "bounded_below", "bounded_above", "n", "nvec", "start")
    parts = {name: getattr(space, name) for name in names if hasattr(space, name)}
    for name in parts.keys() & {"bounded_below", "bounded_above"}:  # of a 0-d box, Gymnasium makes a scalar or an array
        parts[name] = np.asarray(parts[name])
    return parts


def arrays_of(steps: Rollout | Trajectory) -> dict[str, np.ndarray]:
    """Every array inside, by path."""
    found = {}
    for field in dataclasses.fields(steps):
        item = getattr(steps, field.name)
        if isinstance(item, Successors):
            found |= {f"successors.{path}": leaf for path, leaf in leaves({"step": item.step, "lane": item.lane})}
            item = item.obs
        if isinstance(item, np.ndarray | dict) or (isinstance(item, tuple) and field.name != "header"):
            found |= {f"{field.name}.{path}": leaf for path, leaf in leaves(item)}
    return found
