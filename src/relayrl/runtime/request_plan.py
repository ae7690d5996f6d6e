"""What a call of `request_action` comes to: whom it names, what each policy is asked, and its rewards and flags checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from relayrl.data.trees import Array
from relayrl.errors import ConfigError, RelayRLError
from relayrl.runtime.published_policy import ActionRequest, PublishedPolicy
from relayrl.runtime.state_manager import ActorHandle, PolicySlot, StateManager
from relayrl.runtime.step_pages import Lane


@dataclass(frozen=True, slots=True)
class ActionCall:
    """The arguments of one `request_action`."""

    actor_ids: Sequence[UUID]
    obs: Any
    mask: Any = None
    reward: Any = None


@dataclass(frozen=True, slots=True)
class RequestPart:
    """The rows [K] (None: all) of a call that one policy acts for."""

    rows: Array | None
    policy: PublishedPolicy
    request: ActionRequest


@dataclass(frozen=True, slots=True)
class DrawnCall:
    """A call whose actions were drawn and not recorded, or what was wrong with it."""

    call: ActionCall
    parts: list[RequestPart] | RelayRLError


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What is known of a tuple of ids until the table of actors changes."""

    actor_ids: tuple[UUID, ...]
    table: dict[UUID, ActorHandle]
    handles: tuple[ActorHandle, ...]
    lanes: tuple[Lane, ...]
    lane_keys: tuple[UUID, ...]
    slot: PolicySlot | None
    numbers: Array
    num_closed: int


def by_policy(handles: Sequence[ActorHandle]) -> list[tuple[Array | None, PublishedPolicy]]:
    """Policies with the rows that they act for; None where one acts for all."""
    rows_of: dict[PublishedPolicy, list[int]] = {}
    for i, handle in enumerate(handles):
        rows_of.setdefault(handle.slot.policy, []).append(i)
    if len(rows_of) == 1:
        return [(None, policy) for policy in rows_of]
    return [(np.array(rows), policy) for policy, rows in rows_of.items()]


def make_plan(actor_ids: Sequence[UUID], table: dict[UUID, ActorHandle], state: StateManager) -> RequestPlan:
    if not actor_ids:
        raise ConfigError("a request names at least one actor")
    handles = tuple(state.handle(actor_id) for actor_id in actor_ids)
    if len(set(handles)) != len(handles):
        raise ConfigError("an actor occurs twice in one request; one observation per actor")
    pages, slot = handles[0].pages, handles[0].slot
    with pages.lock:
        num_closed = pages.num_closed
        is_open = all(handle.pages is not pages or pages.is_open(handle.lane) for handle in handles)
    return RequestPlan(
        actor_ids=actor_ids if isinstance(actor_ids, tuple) else tuple(actor_ids),
        table=table,
        handles=handles,
        lanes=tuple(handle.lane for handle in handles),
        lane_keys=tuple(handle.lane.key for handle in handles),
        slot=slot if all(handle.slot is slot for handle in handles) else None,
        numbers=np.array([handle.lane.number for handle in handles]),
        num_closed=num_closed if is_open and all(handle.pages is pages for handle in handles) else -1,
    )


def checked_reward(reward: Any) -> float:
    if type(reward) is float and math.isfinite(reward):
        return reward
    value = float(reward) if isinstance(reward, float | int) else float(checked_rewards(reward, 1)[0])
    if not math.isfinite(value):
        raise ConfigError(f"reward is {value}; it must be a finite number")
    return value


def checked_rewards(reward: Any, num_rows: int) -> Array:
    array = np.asarray(reward, np.float32)
    if array.shape == ():
        array = np.full(num_rows, array, np.float32)
    if array.shape != (num_rows,):
        raise ConfigError(f"reward has shape {array.shape}, expected a number or {(num_rows,)}: one per actor")
    if not (
        math.isfinite(np.dot(array, array)) or np.isfinite(array).all()
    ):  # the product costs a quarter, but may overflow
        raise ConfigError("a reward is NaN or infinite")
    return array


def checked_flags(name: str, value: Any, num_rows: int) -> Array:
    array = np.asarray(value, bool)
    if array.shape not in ((), (num_rows,)):
        raise ConfigError(f"{name} has shape {array.shape}, expected a flag or {(num_rows,)}: one per actor")
    return np.broadcast_to(array, num_rows)
