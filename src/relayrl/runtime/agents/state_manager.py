"""Who the actors are: their ids, lanes, devices and policies. Publishes new policies to them.

Invariants:

- An id belongs to at most one actor; `set_actor_id` moves the actor with everything it has, its open trajectory included.
- Every actor has a policy from its first moment on. With `SHARED` inference, actors of one device whose policies have the
  same layout share one; with `INDEPENDENT`, each may be given its own (an unchanged one is held in memory once).
- A policy is replaced only by a newer version of the same layout, in one assignment that readers see whole or not at all.
- Readers look actors up without a lock: the table is replaced, never changed.

Not its job: acting (`published_policy`) or routes to sinks (`router`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol
from uuid import UUID, uuid4

import numpy as np

from relayrl.accelerator.mlp_actor import RowGenerator
from relayrl.data.columns import Trajectory
from relayrl.data.steps.env_clock import EnvClock, EpisodeOver
from relayrl.data.steps.step_pages import Lane, StepPages
from relayrl.data.steps.step_rows import ActingLayout
from relayrl.errors import ConfigError
from relayrl.runtime.agents.client_config import BatchingSettings
from relayrl.runtime.requests.policy_model import ModelSource, PolicyModel, fitting_group, load_model
from relayrl.runtime.requests.published_policy import ActionChoice, PublishedPolicy


class InferenceMode(Enum):
    """Whose policy an actor acts with."""

    SHARED = "shared"
    INDEPENDENT = "independent"


class PolicyAssignment(Protocol):
    """Decides by itself which version of a policy every actor acts with, an inference server for example."""

    def version_for(self, actor_id: UUID) -> int: ...

    def model(self, version: int) -> PolicyModel: ...


class PolicySlot:
    """Where actors find their newest policy."""

    __slots__ = ("device", "policy")

    def __init__(self, policy: PublishedPolicy, device: str) -> None:
        self.policy, self.device = policy, device


class ActorHandle:
    """One actor: its present id, its lane, and where its policy is."""

    __slots__ = ("actor_id", "lane", "pages", "slot")

    def __init__(self, actor_id: UUID, lane: Lane, pages: StepPages, slot: PolicySlot) -> None:
        self.actor_id, self.lane, self.pages, self.slot = actor_id, lane, pages, slot

    @property
    def named_agent_id(self) -> str | None:
        """The agent that it was given; None where it is called by its own id."""
        return None if self.lane.agent_id == str(self.actor_id) else self.lane.agent_id


@dataclass(frozen=True, slots=True)
class Place:
    """Whom an actor acts for: an agent of an environment that it shares with other actors, or of one of its own."""

    agent_id: str | None = None
    env_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class StateSettings:
    """What does not change while the agent lives."""

    mode: InferenceMode
    choice: ActionChoice
    seed: int | None


class StateManager:
    """The table of actors. Methods that change it exclude each other."""

    def __init__(
        self,
        settings: StateSettings,
        default_model: ModelSource | None,
        max_length: int,
        batching: BatchingSettings,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        self._assignment = assignment
        self._assigned: dict[int, PolicySlot] = {}
        self._settings, self._max_length, self._batching = settings, max_length, batching
        self._default_model = default_model
        self._default_version: int | None = None
        self._defaults: dict[str, PublishedPolicy] = {}
        self._lock = threading.Lock()
        self._seeds = np.random.SeedSequence(settings.seed)
        self._pages: dict[tuple[str, ...], StepPages] = {}
        self._clocks: dict[UUID, EnvClock] = {}
        self.on_episode_over: EpisodeOver = lambda *_: None
        """Gets every episode of an environment that actors share when it is over, and the agents that acted in it."""
        self._shared: dict[tuple[str, tuple[str, ...]], PolicySlot] = {}
        self.handles: dict[UUID, ActorHandle] = {}
        """By id; replaced as a whole when it changes."""

    def handle(self, actor_id: UUID) -> ActorHandle:
        try:
            return self.handles[actor_id]
        except KeyError:
            raise _unknown(actor_id) from None

    def prepare(self, source: ModelSource, device: str, group: str | None = None) -> PublishedPolicy:
        """A policy that is loaded and not yet given to anybody."""
        model = load_model(source, device, group)
        with self._lock:
            return self._published(model, _version_of(model, None, default=0))

    def default_policy(self, device: str) -> PublishedPolicy:
        """What new actors act with unless they are given something else: the default model, or what replaced it."""
        with self._lock:
            source, version, policy = self._default_model, self._default_version, self._defaults.get(device)
        if policy is not None:
            return policy
        if source is None:
            raise ConfigError("there is no default model; give one with AgentBuilder.default_model() or model=…")
        model = load_model(source, device)
        with self._lock:
            return self._defaults.setdefault(device, self._published(model, _version_of(model, version, default=0)))

    @property
    def is_assigned(self) -> bool:
        """Whether somebody else decides what new actors act with."""
        return self._assignment is not None

    def reassign(self, *, anew: bool = False) -> None:
        """Let every actor act with the version that it is assigned now; requests under way finish with theirs.

        `anew`: models that were loaded before are of no use any more.
        """
        assert self._assignment is not None
        with self._lock:
            slots = set(self._assigned.values())
            if anew:
                self._assigned = {}
            for handle in self.handles.values():
                if handle.slot not in slots:  # was given a policy of its own
                    continue
                slot = self._assigned_slot(handle.actor_id, handle.slot.device)
                if slot.policy.pages is not handle.pages:
                    raise ConfigError(_misfit(handle.slot.policy.model, slot.policy.model))
                handle.slot = slot
            self.handles = dict(self.handles)  # what is known of ids by the table is known no more
            used = {handle.slot for handle in self.handles.values()}
            self._assigned = {version: slot for version, slot in self._assigned.items() if slot in used}

    def _assigned_slot(self, actor_id: UUID, device: str) -> PolicySlot:
        assert self._assignment is not None
        version = self._assignment.version_for(actor_id)
        slot = self._assigned.get(version)
        if slot is None:
            policy = self._published(self._assignment.model(version), version)
            slot = self._assigned[version] = PolicySlot(policy, device)
        return slot

    def add(
        self, actor_id: UUID | None, policy: PublishedPolicy | None, device: str, place: Place | None = None
    ) -> ActorHandle:
        """A new actor that acts with `policy`, or with what its device shares already; without one, as it is assigned."""
        with self._lock:
            actor_id = uuid4() if actor_id is None else actor_id
            if actor_id in self.handles:
                raise ConfigError(f"there is an actor {actor_id} already; leave the id out to get a fresh one")
            agent_id = str(actor_id) if place is None or place.agent_id is None else place.agent_id
            clock = None if place is None or place.env_id is None else self._clock(place.env_id, agent_id)
            slot = self._assigned_slot(actor_id, device) if policy is None else self._slot_for(policy, device)
            pages = slot.policy.pages
            with pages.lock:
                lane = pages.open_lane(uuid4(), agent_id, clock)
            handle = ActorHandle(actor_id, lane, pages, slot)
            self.handles = {**self.handles, actor_id: handle}
            return handle

    def _clock(self, env_id: UUID, agent_id: str) -> EnvClock:
        """The clock of an environment, in which the agent takes its place."""
        clock = self._clocks.setdefault(env_id, EnvClock(env_id, lambda *over: self.on_episode_over(*over)))
        if agent_id in clock.agent_ids:
            raise ConfigError(f"environment {env_id} has an agent {agent_id!r} already; give another agent_id")
        clock.agent_ids.add(agent_id)
        return clock

    def remove(self, actor_id: UUID) -> tuple[ActorHandle, Trajectory | None]:
        """The actor is gone for new requests; gives what it had not finished."""
        with self._lock:
            handle = self.handle(actor_id)
            with handle.pages.lock:
                trajectory = handle.pages.interrupt(handle.lane)
                handle.pages.close_lane(handle.lane)
            self.handles = {key: other for key, other in self.handles.items() if key != actor_id}
            return handle, trajectory

    def rename(self, old: UUID, new: UUID) -> None:
        """The actor answers to `new`, and no longer to `old`; its open trajectory will be recorded under `new`."""
        with self._lock:
            handle = self.handle(old)
            if new == old:
                return
            if new in self.handles:
                raise ConfigError(f"there is an actor {new} already; remove it, or choose another id")
            if handle.named_agent_id is None:  # an agent keeps the name that it was given
                with handle.pages.lock:
                    handle.pages.rename(handle.lane, str(new))
            handle.actor_id = new
            self.handles = {(new if key == old else key): other for key, other in self.handles.items()}

    def acts_with(self, model: PolicyModel) -> bool:
        """Whether some actor's policy has the layout of `model`."""
        return any(handle.slot.policy.model.layout.key == model.layout.key for handle in self.handles.values())

    def publish(
        self,
        source: ModelSource,
        actor_ids: Sequence[UUID] | None,
        version: int | None,
        group: str | None = None,
        *,
        in_place_of_same: bool = False,
    ) -> int:
        """Give a newer policy to the actors named, or to all whose policies have its layout; gives its version.

        A live policy replaces those of `group`: the only one that it fits, unless given. `in_place_of_same` also replaces one
        of the same version.
        """
        if self._assignment is not None:
            raise ConfigError("the inference server decides which policy acts; promote a version there")
        handles = list(self.handles.values()) if actor_ids is None else [self.handle(each) for each in actor_ids]
        devices = sorted({handle.slot.device for handle in handles})
        if group is None and handles:
            group = fitting_group(source, (handle.slot.policy.model.layout for handle in handles), devices[0])
        models = {device: load_model(source, device, group) for device in devices}
        with self._lock:
            slots = self._slots_to_change(models, handles, named=actor_ids is not None)
            newest = max(slot.policy.version for slot in slots)
            policies: dict[str, PublishedPolicy] = {}
            for device, model in models.items():
                number = _version_of(model, version, default=newest + 1)
                if number < newest + (not in_place_of_same):
                    raise ConfigError(
                        f"policy version {number} is not newer than version {newest}, which acts; give a larger version="
                    )
                policies[device] = self._published(model, number)
            for slot in slots:
                slot.policy = policies[slot.device]
            published = next(iter(policies.values()))
            if actor_ids is None:
                self._replace_default(source, published, policies)
            return published.version

    def interrupt_all(self) -> list[tuple[UUID, Trajectory]]:
        """The open trajectories of all actors, by lane key; actors stay and begin new episodes."""
        taken = []
        with self._lock:
            for handle in self.handles.values():
                with handle.pages.lock:
                    trajectory = handle.pages.interrupt(handle.lane)
                if trajectory is not None:
                    taken.append((handle.lane.key, trajectory))
        return taken

    def set_max_length(self, max_length: int) -> None:
        """Cut trajectories at another length; fragments that are longer already are cut at their next step."""
        with self._lock:
            self._max_length = max_length
            for pages in self._pages.values():
                with pages.lock:
                    pages.set_max_length(max_length)

    def set_batching(self, batching: BatchingSettings) -> None:
        """Share forward passes by other settings."""
        with self._lock:
            self._batching = batching
            for policy in {handle.slot.policy for handle in self.handles.values()}:
                policy.batcher.settings = batching

    def _replace_default(
        self, source: ModelSource, published: PublishedPolicy, policies: dict[str, PublishedPolicy]
    ) -> None:
        """New actors get what all others got, unless the default is of another layout."""
        default = next(iter(self._defaults.values()), None)
        if default is not None and default.model.layout.key == published.model.layout.key:
            self._default_model, self._default_version, self._defaults = source, published.version, policies

    def _slot_for(self, policy: PublishedPolicy, device: str) -> PolicySlot:
        if self._settings.mode is InferenceMode.INDEPENDENT:
            return PolicySlot(policy, device)
        return self._shared.setdefault((device, policy.model.layout.key), PolicySlot(policy, device))

    def _slots_to_change(
        self, models: dict[str, PolicyModel], handles: Iterable[ActorHandle], *, named: bool
    ) -> list[PolicySlot]:
        if named and self._settings.mode is InferenceMode.SHARED:
            raise ConfigError(
                "actors share one policy per device; leave actor_ids out, or build with INDEPENDENT inference"
            )
        slots, misfit = [], None
        for slot in {handle.slot for handle in handles}:
            if slot.policy.model.layout.key == models[slot.device].layout.key:
                slots.append(slot)
            else:
                misfit = slot
        if misfit is not None and (named or not slots):
            raise ConfigError(_misfit(misfit.policy.model, models[misfit.device]))
        if not slots:
            raise ConfigError("there is no actor to give this policy to; make one with new_actor(model=…)")
        return slots

    def _published(self, model: PolicyModel, version: int) -> PublishedPolicy:
        pages = self._pages.get(model.layout.key)
        if pages is None:
            pages = self._pages[model.layout.key] = StepPages(model.layout, self._max_length)
        (seed,) = self._seeds.spawn(1)
        rng = RowGenerator(seed) if self._settings.choice is ActionChoice.SAMPLE else None
        return PublishedPolicy(model, version, pages, rng, self._batching)


def _version_of(model: PolicyModel, given: int | None, default: int) -> int:
    if given is not None:
        return given
    return default if model.policy_version is None else model.policy_version


def _misfit(old: PolicyModel, new: PolicyModel) -> str:
    return f"the new policy ({_described(new.layout)}) cannot replace the old one ({_described(old.layout)})"


def _described(layout: ActingLayout) -> str:
    memory = f"a memory of {layout.memory_width}" if layout.memory_width else "no memory"
    extras = f"{'values' if layout.has_value else 'no values'}, {memory}"
    return f"{layout.observation_space} → {layout.action_space}, group {layout.group!r}, {extras}"


def _unknown(actor_id: object) -> ConfigError:
    return ConfigError(f"there is no actor {actor_id}; get_actor_ids() names those there are")
