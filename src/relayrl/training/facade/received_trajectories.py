"""What `receive_trajectory` is given: read from wherever it is, checked, and taken over by a policy group.

a Trajectory                       itself
bytes of `relayrl.data.arrow.codec`      an Arrow IPC stream
"csv:DIR", "sqlite:FILE", …        a sink's URL
DIR                                a directory of a file sink: Arrow, Parquet or CSV by what is in it
FILE                               a file that holds the bytes of one trajectory, or a .demo file of ML-Agents

Beyond what every sink asks (shapes, dtypes and choices that exist: `relayrl.sinks.buffered`), spaces must be the trainer's,
numbers finite, and actions among those that their mask allows; errors name the trajectory, column and row. Rewards and
observations of a wider type of the same kind, such as float64, are converted. Log-probabilities and values that are NaN on
every row were never known (so the runtime records what an actor did not give) and are worked out again. Actions outside of a
`Box` are taken as they are: a Gaussian acts there until it is clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from relayrl.data.action_masks import mask_parts, require_allowed
from relayrl.data.arrow.codec import decode_trajectory
from relayrl.data.arrow.layout_book import name_of, trajectory_name
from relayrl.data.arrow.schema import LOGP, POLICY_VERSION, REWARD, VALUE
from relayrl.data.arrow.space_json import space_of_tree
from relayrl.data.columns import Trajectory
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.data.trees import Array, Space, Tree, leaf_dtype, same_columns, space_leaves, tree_leaves, unflatten
from relayrl.errors import ConfigError
from relayrl.sinks.buffered import checked_blocks, row_name
from relayrl.sinks.contract import SCHEMES, is_sink_url, open_source
from relayrl.sinks.files.parts_source import SUFFIXES
from relayrl.training.trainers.policy_groups import PolicyGroup

TrajectorySource: TypeAlias = "Trajectory | bytes | bytearray | memoryview | Path | str"
_UNKNOWN_AS_NAN = (LOGP.name, VALUE.name)
_PLAIN = {leaf.name: leaf.dtype for leaf in (REWARD, POLICY_VERSION, LOGP, VALUE)}


def read_trajectories(source: TrajectorySource) -> Iterator[Trajectory]:
    """The trajectories in `source`, in its order."""
    if isinstance(source, Trajectory):
        yield source
    elif isinstance(source, bytes | bytearray | memoryview):
        yield decode_trajectory(source)
    elif isinstance(source, str) and is_sink_url(source):
        yield from _from_url(source)
    elif Path(source).is_dir():
        yield from _from_url(f"{_kind_of_folder(Path(source))}:{source}")
    elif Path(source).is_file():
        yield from _from_file(Path(source))
    else:
        raise ConfigError(f"there is no file or folder {source}; a sink's URL begins with {', '.join(SCHEMES)}")


def _from_url(url: str) -> Iterator[Trajectory]:
    with open_source(url) as source:
        yield from source


def _kind_of_folder(folder: Path) -> str:
    known = {**SUFFIXES, ".demo": "demo"}
    kinds = {known[path.suffix] for path in folder.iterdir() if path.suffix in known}
    if len(kinds) != 1:
        found = f"files of {', '.join(sorted(kinds))}" if kinds else "no trajectories"
        raise ConfigError(f"{folder} holds {found}; name what to read, for example csv:{folder}")
    return kinds.pop()


def _from_file(path: Path) -> Iterator[Trajectory]:
    if path.suffix in SUFFIXES:
        raise ConfigError(f"{path.name} is one part of a sink; give its folder, {SUFFIXES[path.suffix]}:{path.parent}")
    if path.suffix == ".demo":
        yield from _from_url(f"demo:{path}")
        return
    yield decode_trajectory(path.read_bytes())


def with_known_state(trajectory: Trajectory, state_space: Space | None) -> Trajectory:
    """`trajectory` with its states where there is a `state_space`, without them where there is none."""
    if state_space is None:
        has_none = trajectory.state is None and trajectory.final_state is None
        return trajectory if has_none else replace(trajectory, state=None, final_state=None)
    if trajectory.state is None:
        raise ConfigError(f"{trajectory_name(trajectory)} has no state, and the trainer has a state_space")
    if not same_columns(space_of_tree(trajectory.state, 1), state_space, by_dtype=True):
        raise ConfigError(f"{trajectory_name(trajectory)} has states that are not in {state_space}")
    return trajectory


def adopted(trajectory: Trajectory, group: PolicyGroup, agent_id: str) -> Trajectory:
    """`trajectory` as one of the group's; `ConfigError` where its spaces, or its masks, are others."""
    if not same_columns(trajectory.observation_space, group.observation_space):
        raise ConfigError(
            f"{trajectory_name(trajectory)} observes {trajectory.observation_space}, the trainer expects "
            f"{group.observation_space}; give the trainer that observation_space"
        )
    if trajectory.action_space != group.action_space:
        raise ConfigError(
            f"{trajectory_name(trajectory)} acts in {trajectory.action_space}, the trainer expects "
            f"{group.action_space}; give the trainer that action_space"
        )
    mask = trajectory.action_mask
    if not (mask is None and trajectory.final_mask is None) and not group.masks_actions:
        raise ConfigError(f"{trajectory_name(trajectory)} has action masks; make the trainer with masks_actions=True")
    if mask is None and group.mask_width is not None:
        mask = np.ones((len(trajectory), group.mask_width), bool)
    given = replace(trajectory, action_mask=mask)
    require_allowed(given)
    return replace(
        given,
        group=group.name,
        agent_id=agent_id,
        observation_space=group.observation_space,
        action_space=group.action_space,
    )


def checked(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with the dtypes of their spaces; `ConfigError` names the first that cannot be learned from."""
    found = [_with_own_dtypes(trajectory) for trajectory in trajectories]
    for block in checked_blocks(found):
        require_learnable(block)
    return found


def require_learnable(block: TrajectoryBlock) -> None:
    """`ConfigError` names the first number that is not finite, or the first action that its mask forbids."""
    _require_finite(block)
    _require_allowed(block)


def _with_own_dtypes(trajectory: Trajectory) -> Trajectory:
    changed: dict[str, Any] = {}
    for name, dtype in _PLAIN.items():
        column = getattr(trajectory, name)
        if name in _UNKNOWN_AS_NAN and _is_unknown(column):
            changed[name] = None
        elif column is not None and _converted(column, dtype) is not column:
            changed[name] = _converted(column, dtype)
    seen, done = trajectory.observation_space, trajectory.action_space
    for name, space in (("obs", seen), ("final_obs", seen), ("action", done)):
        tree = getattr(trajectory, name)
        try:
            converted = _converted_tree(space, tree, name)
        except ConfigError as error:
            raise ConfigError(f"{trajectory_name(trajectory)}: {error}") from error
        if converted is not tree:
            changed[name] = converted
    return replace(trajectory, **changed) if changed else trajectory


def _is_unknown(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind == "f" and bool(np.isnan(column).all())


def _converted_tree(space: Space, tree: Tree, name: str) -> Tree:
    given = list(tree_leaves(space, tree, name))
    kinds = [leaf_dtype(leaf) for _, leaf in space_leaves(space)]
    own = [_converted(leaf, kind) for leaf, kind in zip(given, kinds, strict=True)]
    same = all(one is other for one, other in zip(given, own, strict=True))
    result: Tree = tree if same else unflatten(space, iter(own))
    return result


def _converted(column: Any, dtype: np.dtype[Any]) -> Any:
    """As `dtype` where that changes no more than the width; itself otherwise, for `layout_book` to refuse."""
    if not isinstance(column, np.ndarray | np.generic) or column.dtype == dtype:
        return column
    return column.astype(dtype) if np.can_cast(column.dtype, dtype, "same_kind") else column


def _require_finite(block: TrajectoryBlock) -> None:
    for leaf, column in zip(block.layout.stored, block.arrays, strict=True):
        if (row := _first_row_not_finite(column)) is not None:
            raise ConfigError(f"{row_name(block.headers, leaf.name, row)} is NaN or infinite")
    for leaf, final in zip(block.layout.followed, block.finals, strict=True):
        if (k := _first_row_not_finite(final)) is not None:
            raise ConfigError(f"{name_of(block.headers, k)}: 'final_{leaf.name}' is NaN or infinite")


def _first_row_not_finite(column: Array) -> int | None:
    if column.dtype.kind != "f" or np.isfinite(column).all():
        return None
    return int(np.argwhere(~np.isfinite(column))[0][0])


def _require_allowed(block: TrajectoryBlock) -> None:
    """Every action is one that its mask allows; so a mask allows at least one."""
    space, leaf = block.layout.action_space, block.layout.action_mask
    if leaf is None or not mask_parts(space):
        return
    mask, end = block.column(leaf), 0
    for (_, part), column in zip(space_leaves(space), block.layout.action, strict=True):
        sizes = np.array(mask_parts(part), np.int64)
        if not len(sizes):
            continue
        assert isinstance(part, spaces.Discrete | spaces.MultiDiscrete)
        action, begins = block.column(column), end + np.cumsum(sizes) - sizes  # each option follows the one before
        end += int(sizes.sum())
        chosen = action.reshape(len(action), -1) - np.asarray(part.start).reshape(-1) + begins
        is_allowed = np.take_along_axis(mask, chosen.astype(np.int64), 1).all(1)
        if not is_allowed.all():
            row = int(np.argmin(is_allowed))
            name = row_name(block.headers, column.name, row)
            raise ConfigError(f"{name} is {action[row].tolist()}, which its mask forbids")
