"""Checks of the environment contract that look at single results: ids, groups, arrays, spaces, masks.

Each check is one fact about a `Workbench`; it returns what is wrong, or None. `env_contract` says in which order they run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

from relayrl.data.action_masks import allows_nothing, mask_parts
from relayrl.data.trees import Array, Space, leaf_dtype, leaves, map_tree, space_leaves
from relayrl.envs.agent_groups import mask_size
from relayrl.envs.environment_contract import AgentGroup, GroupObservation, GroupStep, VectorStep
from relayrl.envs.vector.guarded_vector import bounds
from relayrl.testing.checks.contract_recording import Workbench


def runs(bench: Workbench) -> str | None:
    """reset() and step() do not raise"""
    return None if bench.recording.steps else "nothing was recorded; give num_steps of at least 1"


def ids_are_unique_and_stable(bench: Workbench) -> str | None:
    """every environment has an id of its own, which resets and steps leave alone"""
    env = bench.fresh()
    given = tuple(env.env_ids)
    if len(given) != bench.num_envs or len(set(given)) != len(given):
        return f"{bench.num_envs} environments have the ids {[str(env_id) for env_id in given]}"
    if not all(isinstance(env_id, uuid.UUID) for env_id in given):
        return f"ids must be uuid.UUID, not {type(given[0]).__name__}"
    result = env.reset(seed=bench.seed)
    if tuple(env.env_ids) != given:
        return "reset() changed env_ids"
    env.step(bench.player(env).act(result.groups))
    return None if tuple(env.env_ids) == given else "step() changed env_ids"


def groups_name_every_agent_once(bench: Workbench) -> str | None:
    """groups are filed under their names, have agents, and no agent is in two"""
    groups = bench.recording.groups
    agents = [agent for group in groups.values() for agent in group.agent_ids]
    if len(set(agents)) != len(agents):
        return f"an agent is named twice in {agents}"
    for name, group in groups.items():
        if group.name != name:
            return f"group {group.name!r} is filed under {name!r}"
        if not group.agent_ids:
            return f"group {name!r} has no agents"
    return None if groups else "there are no groups"


def results_cover_every_group(bench: Workbench) -> str | None:
    """every result speaks of the groups that the environment declares, and of no others"""
    declared = set(bench.recording.groups)
    for moment, result in bench.recording.moments():
        if set(result.groups) != declared:
            return f"{moment} is about {sorted(result.groups)}, declared are {sorted(declared)}"
    return None


def arrays_are_of_the_declared_device(bench: Workbench) -> str | None:
    """arrays are NumPy's where device is "cpu", and torch tensors elsewhere"""
    env = bench.fresh_unconverted()
    result = env.reset(seed=bench.seed)
    expected = "numpy" if env.device == "cpu" else "torch"
    for name, group in result.groups.items():
        for what, array in (*leaves(group.obs), ("active", group.active)):
            if type(array).__module__.partition(".")[0] != expected:
                kind = type(array).__name__
                return f"group {name!r}: {what or 'obs'} is a {kind}, on device {env.device!r} it must be {expected}'s"
    return None


def shapes_are_right(bench: Workbench) -> str | None:
    """arrays have the shapes [B], [B, N] and [B, N, …] of their spaces"""
    return _first_odd(bench, lambda array, shape, _dtype: array.shape == shape, lambda a, s, _: f"{a.shape}, not {s}")


def dtypes_are_right(bench: Workbench) -> str | None:
    """arrays have the dtypes of their spaces; flags are bool, rewards float32"""
    return _first_odd(bench, lambda array, _, dtype: array.dtype == dtype, lambda a, _, d: f"{a.dtype}, not {d}")


def _first_odd(bench: Workbench, fits: Any, describe: Any) -> str | None:
    for moment, result in bench.recording.moments():
        for what, array, shape, dtype in _expected(bench, result):
            if not fits(array, shape, dtype):
                return f"{moment}: {what} is {describe(array, shape, dtype)}"
    return None


def _expected(bench: Workbench, result: Any) -> Iterator[tuple[str, Array, tuple[int, ...], np.dtype[Any]]]:
    """Arrays of a result with the shapes and dtypes that they should have."""
    flag = np.dtype(bool)
    if isinstance(result, VectorStep):
        yield "episode_over", result.episode_over, (bench.num_envs,), flag
    for name, group in bench.recording.groups.items():
        got, lanes = result.groups[name], (bench.num_envs, group.num_agents)
        yield from _expected_leaves(f"{name}.obs", got.obs, group.observation_space, lanes)
        yield f"{name}.active", got.active, lanes, flag
        if isinstance(got, GroupStep):
            yield f"{name}.reward", got.reward, lanes, np.dtype(np.float32)
            yield f"{name}.terminated", got.terminated, lanes, flag
            yield f"{name}.truncated", got.truncated, lanes, flag
            if got.final is not None:
                rows = (len(got.final.env),)
                yield from _expected_leaves(f"{name}.final.obs", got.final.obs, group.observation_space, rows)


def _expected_leaves(
    what: str, tree: Any, space: Space, leading: tuple[int, ...]
) -> Iterator[tuple[str, Array, tuple[int, ...], np.dtype[Any]]]:
    for (path, array), (_, leaf) in zip(leaves(tree), space_leaves(space), strict=True):
        yield f"{what}{path and '.' + path}", array, (*leading, *(leaf.shape or ())), leaf_dtype(leaf)


def observations_lie_in_their_spaces(bench: Workbench) -> str | None:
    """what acting lanes see, and what ended lanes saw last, is finite and inside the observation space"""
    for moment, result in bench.recording.moments():
        for name, group in bench.recording.groups.items():
            got = result.groups[name]
            seen = map_tree(lambda leaf, active=got.active: leaf[active], got.obs)
            odd = _outside(seen, group.observation_space)
            if odd is None and isinstance(got, GroupStep) and got.final is not None:
                odd = _outside(got.final.obs, group.observation_space)
            if odd is not None:
                return f"{moment}, group {name!r}: {odd}"
    return None


def _outside(tree: Any, space: Space) -> str | None:
    for (path, rows), (_, leaf) in zip(leaves(tree), space_leaves(space), strict=True):
        low, high = bounds(leaf)
        inside = (rows >= low) & (rows <= high) & np.isfinite(rows)
        if not inside.all():
            return f"obs{path and '.' + path} holds {rows[~inside].ravel()[0]}, outside {leaf}"
    return None


def rewards_are_finite(bench: Workbench) -> str | None:
    """rewards are finite, in lanes that do not act as well"""
    for t, step in enumerate(bench.recording.steps, start=1):
        for name, group in step.groups.items():
            if not np.isfinite(group.reward).all():
                b, n = np.argwhere(~np.isfinite(group.reward))[0]
                return f"step {t}: {bench.recording.groups[name].agent_ids[n]} in environment {b} gets {group.reward[b, n]}"
    return None


def masks_fit_the_actions(bench: Workbench) -> str | None:
    """action masks are given where declared, and are bool with an entry for each action"""
    for moment, result in bench.recording.moments():
        for name, group in bench.recording.groups.items():
            odd = _odd_mask(bench.num_envs, group, result.groups[name])
            if odd is not None:
                return f"{moment}, group {name!r}: {odd}"
    return None


def _odd_mask(num_envs: int, group: AgentGroup, got: GroupObservation) -> str | None:
    mask = got.action_mask
    if mask is None:
        return "masks_actions is True, yet there is no mask" if group.masks_actions else None
    if not group.masks_actions:
        return "masks_actions is False, yet there is a mask"
    shape = (num_envs, group.num_agents, mask_size(group.action_space))
    if mask.shape != shape or mask.dtype != bool:
        return f"the mask is {mask.dtype}{list(mask.shape)}, not bool{list(shape)}"
    final = got.final if isinstance(got, GroupStep) else None
    if final is not None and final.action_mask is not None:
        last, last_shape = final.action_mask, (len(final.env), shape[-1])
        if last.shape != last_shape or last.dtype != bool:
            return f"the final mask is {last.dtype}{list(last.shape)}, not bool{list(last_shape)}"
    return None


def masks_allow_an_action(bench: Workbench) -> str | None:
    """acting lanes are allowed at least one action, in each component of a MultiDiscrete space"""
    for moment, result in bench.recording.moments():
        for name, group in bench.recording.groups.items():
            got = result.groups[name]
            if got.action_mask is None:
                continue
            stuck = got.active & allows_nothing(got.action_mask, mask_parts(group.action_space))
            if stuck.any():
                b, n = np.argwhere(stuck)[0]
                return f"{moment}: the mask of {group.agent_ids[n]} in environment {b} allows nothing"
    return None


def state_fits_its_space(bench: Workbench) -> str | None:
    """the global state is given exactly where state_space is, with its shape and dtype and inside it"""
    space = bench.recording.state_space
    for moment, result in bench.recording.moments():
        if (result.state is None) != (space is None):
            return f"{moment}: state is {'absent' if result.state is None else 'given'}, state_space is {space}"
        if result.state is None or space is None:
            continue
        for what, array, shape, dtype in _expected_leaves("state", result.state, space, (bench.num_envs,)):
            if array.shape != shape or array.dtype != dtype:
                return f"{moment}: {what} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}"
        odd = _outside(result.state, space)
        if odd is not None:
            return f"{moment}: {odd}"
    return None


def final_state_is_given_where_episodes_end(bench: Workbench) -> str | None:
    """where there is a global state, final_state has a row for each environment whose episode is over"""
    space = bench.recording.state_space
    for t, step in enumerate(bench.recording.steps, start=1):
        num_over = 0 if space is None else int(step.episode_over.sum())
        if (step.final_state is None) != (num_over == 0):
            return f"step {t}: {num_over} episodes are over, final_state is {step.final_state}"
        if step.final_state is None or space is None:
            continue
        for what, array, shape, dtype in _expected_leaves("final_state", step.final_state, space, (num_over,)):
            if array.shape != shape or array.dtype != dtype:
                return f"step {t}: {what} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}"
        odd = _outside(step.final_state, space)
        if odd is not None:
            return f"step {t}: final_state: {odd}"
    return None
