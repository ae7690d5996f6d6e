"""Frozen copies of policies, by number: those that opponents are drawn from, and those that are still playing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relayrl.engines.self_play.part_games import FrozenPlayer
from relayrl.models.acting.actor import Actor
from relayrl.models.policy import Policy
from relayrl.models.policy_arrays import arrays_of


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The policies of one side as they were once."""

    number: int
    side: int
    step: int  # environment steps of the run at that time
    version: int
    policies: Mapping[str, Policy]
    actors: Mapping[str, Actor]

    def player(self) -> FrozenPlayer:
        """What it acts by, for other processes; arrays of the policies themselves, which nobody changes."""
        noise_scales = {name: policy.head.noise_scale for name, policy in self.policies.items()}
        return FrozenPlayer(arrays_of(self.policies), noise_scales)


class Snapshots:
    """All frozen copies that somebody may still play against; `live` are the policies that are copied."""

    def __init__(self, live: Mapping[str, Policy], make_actor: Callable[[Policy], Actor]) -> None:
        self._live, self._make_actor = live, make_actor
        self._kept: dict[int, Snapshot] = {}
        self._next_number = 0

    def __getitem__(self, number: int) -> Snapshot:
        return self._kept[number]

    def take(self, side: int, groups: Iterable[str], step: int, version: int) -> Snapshot:
        """Copy the policies of `groups` as they are."""
        policies = {name: _frozen(self._live[name]) for name in groups}
        return self._keep(Snapshot(self._next_number, side, step, version, policies, self._actors(policies)))

    def _keep(self, snapshot: Snapshot) -> Snapshot:
        self._kept[snapshot.number] = snapshot
        self._next_number = max(self._next_number, snapshot.number + 1)
        return snapshot

    def _actors(self, policies: Mapping[str, Policy]) -> dict[str, Actor]:
        return {name: self._make_actor(policy) for name, policy in policies.items()}

    def forget_all_but(self, numbers: Iterable[int]) -> None:
        """Let go of copies that nobody will play against any more."""
        wanted = set(numbers)
        self._kept = {number: one for number, one in self._kept.items() if number in wanted}

    def state_dict(self) -> dict[str, Any]:
        """Everything in it."""
        kept = [
            {
                "number": one.number,
                "side": one.side,
                "step": one.step,
                "version": one.version,
                "policies": {name: policy.state_dict() for name, policy in one.policies.items()},
            }
            for one in self._kept.values()
        ]
        return {"next_number": self._next_number, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._kept = {}
        for saved in state["kept"]:
            policies = {name: _frozen(self._live[name]) for name in saved["policies"]}
            for name, policy in policies.items():
                policy.load_state_dict(saved["policies"][name])
            number, side, step, version = (saved[name] for name in ("number", "side", "step", "version"))
            self._keep(Snapshot(number, side, step, version, policies, self._actors(policies)))
        self._next_number = state["next_number"]


def _frozen(policy: Policy) -> Policy:
    return copy.deepcopy(policy).requires_grad_(False)
