"""One version of a policy, published to actors: draws their actions and records their steps.

Invariants:

- It never changes: a request sees one whole model, and its rows say which version acted. A newer version is another object,
  which requests that begin later get.
- A request is recorded whole or, when anything about it fails, not at all. A policy that fails, or gives NaN, raises
  `InferenceError`; it never answers a default action.
- What an actor remembers lies in its lane. Its first step of an episode sees zeros, a later one what the step before it left;
  it changes only when a step was recorded. Which actors share a forward pass makes no difference, and a newer version goes on
  with it.

Not its job: which actor acts with which policy (`state_manager`), or where cut trajectories go (`client_coordinator`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from enum import Enum
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.steps.step_pages import Lane, StepPages
from relayrl.data.steps.step_rows import Step
from relayrl.data.trees import Array, Tree, all_finite, index, leaves, map_tree
from relayrl.errors import ConfigError, InferenceError
from relayrl.models.acting.actor import Decision
from relayrl.models.heads.action_head import ActionHead
from relayrl.runtime.agents.client_config import BatchingSettings
from relayrl.runtime.requests.action_record import ActionRecord
from relayrl.runtime.requests.policy_model import PolicyModel
from relayrl.runtime.requests.request_batcher import RequestBatcher

MAX_VERSION_COLUMNS = 64
Fragments = list[tuple[UUID, Trajectory]]


class ActionChoice(Enum):
    """How actions are chosen from the distribution."""

    SAMPLE = "sample"
    GREEDY = "greedy"


class ActionRequest:
    """What some actors of one policy ask; after it was served, `record` or `error`, and the fragments that were `cut`.

    A deferred request is only drawn when it is served; its step is recorded when somebody calls `record_drawn`, or never.
    """

    __slots__ = (
        "actor_ids",
        "cut",
        "decision",
        "error",
        "is_deferred",
        "lanes",
        "mask",
        "memory",
        "num_closed",
        "num_rows",
        "numbers",
        "obs",
        "record",
        "reward",
    )

    def __init__(
        self,
        actor_ids: tuple[UUID, ...],
        lanes: tuple[Lane, ...],
        numbers: Array | None,
        num_closed: int,
        obs: Tree,
        mask: Array | None,
        reward: Array | float | None,
    ) -> None:
        self.actor_ids, self.lanes, self.numbers, self.num_closed = actor_ids, lanes, numbers, num_closed
        self.obs, self.mask, self.reward = obs, mask, reward
        self.num_rows = len(lanes)
        self.record: ActionRecord | None = None
        self.error: BaseException | None = None
        self.cut: Fragments = []
        self.is_deferred = False
        self.decision: Decision | None = None
        self.memory: Array | None = None  # [L, M] before the step


class PublishedPolicy:
    """A model with its version, the pages that its steps go to, and a generator of its own; greedy without one."""

    def __init__(
        self,
        model: PolicyModel,
        version: int,
        pages: StepPages,
        rng: np.random.Generator | None,
        batching: BatchingSettings,
    ) -> None:
        self.model, self.version, self.pages, self._rng = model, version, pages, rng
        self._model_lock = threading.Lock()
        self._versions: dict[int, Array] = {}
        self._memory_width = model.layout.memory_width
        self._decide, self._is_instant = model.actor.decide, model.actor.is_instant and not self._memory_width
        head = model.actor.head
        is_plain = type(head).to_environment is ActionHead.to_environment
        self._to_environment = None if is_plain else head.to_environment
        self.batcher: RequestBatcher[ActionRequest] = RequestBatcher(self._serve, batching)

    def act_for(self, requests: Sequence[ActionRequest]) -> None:
        """Serve requests in one pass, perhaps with those of other threads; each then has its record or its error."""
        try:
            self.batcher.run(requests)
        except InferenceError as error:
            for request in requests:
                request.error = error

    def act_alone(
        self, actor_ids: tuple[UUID], lane: Lane, obs: Tree, mask: Array | None, reward: float | None
    ) -> tuple[ActionRecord, Fragments]:
        """The action of one actor, and the fragments that were cut.

        A policy that takes less time than waking a thread acts for every thread at once; others are asked through the batcher.
        """
        if self._is_instant:
            try:
                decision = self._decide(obs, mask, None, self._rng)
            except Exception as error:  # as in `decide`: what acts may raise anything
                raise self._failure(error) from error
            self._require_finite(decision, actor_ids)
            action, logp, value, _ = decision
            cut = self.pages.append_one(lane, _only_row(obs, decision, self.version, mask, None), reward)
            taken = action if self._to_environment is None else self._to_environment(action)
            return ActionRecord(actor_ids, taken, logp, value, self._version_column(1)), cut
        request = ActionRequest(actor_ids, (lane,), None, -1, obs, mask, reward)
        self.batcher.run((request,))
        if request.error is not None:
            raise request.error
        assert request.record is not None
        return request.record, request.cut

    def decide(self, obs: Tree, mask: Array | None, memory: Array | None, rng: np.random.Generator | None) -> Decision:
        """What the policy decides for rows; nothing is recorded here."""
        try:
            if self._is_instant:  # threads do not meet in there
                return self._decide(obs, mask, memory, rng)
            with self._model_lock:
                return self._decide(obs, mask, memory, rng)
        except Exception as error:  # onnxruntime's, torch's and a user's own errors share no base class
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> InferenceError:
        return InferenceError(f"policy version {self.version} failed to act: {error}")

    def _serve(self, requests: Sequence[ActionRequest]) -> None:
        if len(requests) == 1:
            self._serve_together(requests)
        else:
            for batch in _with_and_without_mask(requests):
                self._serve_together(batch)

    def _serve_together(self, batch: Sequence[ActionRequest]) -> None:
        """One forward pass; afterwards every request succeeds or fails on its own."""
        memory = _remembered_by(batch, self._memory_width) if self._memory_width else None
        try:
            decision = self.decide(*_joined(batch), memory, self._rng)
        except InferenceError as error:
            for request in batch:
                request.error = error
            return
        start = 0
        for request in batch:
            rows = slice(start, start + request.num_rows)
            request.decision = decision if len(batch) == 1 else _rows_of(decision, rows)
            request.memory = None if memory is None else memory[rows]
            if not request.is_deferred:
                self.record_drawn(request)
            start = rows.stop

    def record_drawn(self, request: ActionRequest) -> None:
        """Record the step of a request whose actions were drawn; it then has its record or its error."""
        assert request.decision is not None
        try:
            self._record(request, request.decision)
        except (ConfigError, InferenceError) as error:
            request.error = error

    def _record(self, request: ActionRequest, decision: Decision) -> None:
        self._require_finite(decision, request.actor_ids)
        action, logp, value, after = decision
        reward, pages, memory = request.reward, self.pages, request.memory
        if request.num_rows == 1:
            one = reward if reward is None or isinstance(reward, float) else float(reward[0])
            step = _only_row(request.obs, decision, self.version, request.mask, memory)
            request.cut = pages.append_one(request.lanes[0], step, one)
        else:
            assert request.numbers is not None
            assert not isinstance(reward, float)
            with pages.lock:
                self._require_open(request)
                step = request.obs, action, logp, value, self.version, request.mask, memory
                request.cut = pages.append(request.numbers, step, reward)
        if memory is not None and after is not None:
            for row, lane in zip(after, request.lanes, strict=True):
                lane.memory, lane.memory_episode = row, lane.episode
        taken = action if self._to_environment is None else self._to_environment(action)
        request.record = ActionRecord(request.actor_ids, taken, logp, value, self._version_column(request.num_rows))

    def _require_finite(self, decision: Decision, actor_ids: tuple[UUID, ...]) -> None:
        action, logp = decision.action, decision.logp
        is_finite = all_finite(action) if isinstance(action, np.ndarray) else _are_finite(action)
        if not (is_finite and (logp is None or all_finite(logp))):
            raise InferenceError(
                f"policy version {self.version} gave NaN or infinity for {actor_ids[:3]}; "
                "look for NaN in the observations or in the model"
            )

    def _version_column(self, num_rows: int) -> Array:
        """`num_rows` times the version, read-only: all records of one length share it."""
        column = self._versions.get(num_rows)
        if column is None:
            column = np.full(num_rows, self.version, np.int64)
            column.flags.writeable = False
            if len(self._versions) < MAX_VERSION_COLUMNS:
                self._versions[num_rows] = column
        return column

    def _require_open(self, request: ActionRequest) -> None:
        if request.num_closed == self.pages.num_closed:  # nothing has closed since the lanes were looked up
            return
        for lane, actor_id in zip(request.lanes, request.actor_ids, strict=True):
            if not self.pages.is_open(lane):
                raise _removed(actor_id)


def _are_finite(tree: Tree) -> bool:
    return all(all_finite(leaf) for _, leaf in leaves(tree))


def _removed(actor_id: UUID) -> ConfigError:
    return ConfigError(f"actor {actor_id} was removed; make a new one with new_actor()")


def _only_row(obs: Tree, decision: Decision, version: int, mask: Array | None, memory: Array | None) -> Step:
    """The step of a request of one row, without the axis of rows."""
    action, logp, value, _ = decision
    return (
        obs[0] if isinstance(obs, np.ndarray) else index(obs, 0),
        action[0] if isinstance(action, np.ndarray) else index(action, 0),
        None if logp is None else logp[0],
        None if value is None else value[0],
        version,
        None if mask is None else mask[0],
        None if memory is None else memory[0],
    )


def _rows_of(decision: Decision, rows: slice) -> Decision:
    """The rows of one request."""
    action, *others = decision
    return Decision(index(action, rows), *(None if column is None else column[rows] for column in others))


def _with_and_without_mask(requests: Sequence[ActionRequest]) -> list[Sequence[ActionRequest]]:
    """Requests that can share a pass: those with masks and those without apart."""
    masked = [request for request in requests if request.mask is not None]
    if not masked or len(masked) == len(requests):
        return [requests]
    return [masked, [request for request in requests if request.mask is None]]


def _joined(batch: Sequence[ActionRequest]) -> tuple[Tree, Array | None]:
    """Rows of all requests one below the other."""
    if len(batch) == 1:
        return batch[0].obs, batch[0].mask
    obs: Tree = map_tree(lambda *leaf: np.concatenate(leaf), *(request.obs for request in batch))
    masks = [request.mask for request in batch if request.mask is not None]
    return obs, np.concatenate(masks) if masks else None


def _remembered_by(batch: Sequence[ActionRequest], width: int) -> Array:
    """[L, M] what lanes remember of their present episodes."""
    lanes = [lane for request in batch for lane in request.lanes]
    memory = np.zeros((len(lanes), width), np.float32)
    for row, lane in zip(memory, lanes, strict=True):
        if lane.memory is not None and lane.memory_episode == lane.episode:
            row[:] = lane.memory
    return memory
