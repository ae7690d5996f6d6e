"""One version of a policy, published to actors: draws their actions and records their steps.

Invariants:

- It never changes: a request sees one whole model, and its rows say which version acted. A newer version is another object,
  which requests that begin later get.
- A request is recorded whole or, when anything about it fails, not at all. A policy that fails, or gives NaN, raises
  `InferenceError`; it never answers a default action.

Not its job: which actor acts with which policy (`state_manager`), or where cut trajectories go (`client_coordinator`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from uuid import UUID

import numpy as np

from relayrl.data.columns import Trajectory
from relayrl.data.trees import Array, Tree, map_tree
from relayrl.errors import ConfigError, InferenceError
from relayrl.models.discrete_heads import CategoricalHead
from relayrl.runtime.action_choice import ActionChoice, chooser
from relayrl.runtime.action_record import ActionRecord
from relayrl.runtime.client_config import BatchingSettings
from relayrl.runtime.compiled_drawing import CompiledDrawing
from relayrl.runtime.policy_model import PolicyModel
from relayrl.runtime.request_batcher import RequestBatcher
from relayrl.runtime.step_pages import Lane, StepPages

MAX_VERSION_COLUMNS = 64
Drawn = tuple[Array, Array | None, Array | None]
Fragments = list[tuple[UUID, Trajectory]]


class ActionRequest:
    """What some actors of one policy ask; after it was served, `record` or `error`, and the fragments that were `cut`.

    A deferred request is only drawn when it is served; its step is recorded when somebody calls `record_drawn`, or never.
    """

    __slots__ = (
        "actor_ids",
        "cut",
        "drawn",
        "error",
        "is_deferred",
        "lanes",
        "mask",
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
        self.drawn: tuple[Array | None, ...] = ()


class PublishedPolicy:
    """A model with its version, the pages that its steps go to, and a generator of its own."""

    def __init__(
        self,
        model: PolicyModel,
        version: int,
        pages: StepPages,
        rng: np.random.Generator,
        choice: ActionChoice,
        batching: BatchingSettings,
    ) -> None:
        self.model, self.version, self.pages = model, version, pages
        self._model_lock = threading.Lock()
        self._versions: dict[int, Array] = {}
        self._choose = chooser(model.head, choice, rng)
        samples = choice is ActionChoice.SAMPLE
        self._compiled = CompiledDrawing.of(model.chains, model.head, rng) if samples else None
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

        A policy that takes less time than waking a thread acts for every thread at once; others are asked through the
        batcher, without a request of its own where nobody else is at work.
        """
        if self._compiled is not None or (mask is None and self.model.alone is not None):
            return self._recorded_alone(actor_ids, lane, obs, mask, reward, self._draw_alone(obs, mask))
        batcher = self.batcher
        if not batcher.try_to_lead():
            request = ActionRequest(actor_ids, (lane,), None, -1, obs, mask, reward)
            batcher.wait_for((request,))
            if request.error is not None:
                raise request.error
            assert request.record is not None
            return request.record, request.cut
        try:
            drawn = self._draw(obs, mask)
        finally:
            batcher.hand_on()
        return self._recorded_alone(actor_ids, lane, obs, mask, reward, drawn)

    def distribution(self, obs: Tree, mask: Array | None) -> Array:
        """Parameters for rows of observations, which nobody asked for one by one and nobody records here."""
        with self._model_lock:
            parameters = np.array(self.model.forward(obs, mask)[0])
        head = self.model.head
        return head.parameters_numpy(parameters, None) if isinstance(head, CategoricalHead) else parameters

    def step(self, obs: Tree, mask: Array | None, memory: Array) -> tuple[Array, Array]:
        """The same for rows that remember `memory` [L, M], and their memory after."""
        with self._model_lock:
            parameters, _, after = self.model.step(obs, mask, memory)
            return np.array(parameters), np.array(after)

    def _serve(self, requests: Sequence[ActionRequest]) -> None:
        if len(requests) == 1:
            self._serve_together(requests)
        else:
            for batch in _with_and_without_mask(requests):
                self._serve_together(batch)

    def _serve_together(self, batch: Sequence[ActionRequest]) -> None:
        """One forward pass; afterwards every request succeeds or fails on its own."""
        try:
            drawn = self._draw(*joined(batch))
        except InferenceError as error:
            for request in batch:
                request.error = error
            return
        start = 0
        for request in batch:
            end = start + request.num_rows
            self._finish(request, drawn if len(batch) == 1 else rows_of(drawn, start, end))
            start = end

    def record_drawn(self, request: ActionRequest) -> None:
        """Record the step of a deferred request; it then has its record or its error."""
        try:
            self._record(request, *request.drawn)  # type: ignore[arg-type]
        except (ConfigError, InferenceError) as error:
            request.error = error

    def _finish(self, request: ActionRequest, drawn: tuple[Array | None, ...]) -> None:
        if request.is_deferred:  # a model may reuse its arrays in the next pass
            request.drawn = tuple(None if column is None else np.array(column) for column in drawn)
        else:
            request.drawn = drawn
            self.record_drawn(request)

    def _draw(self, obs: Tree, mask: Array | None) -> Drawn:
        if self._compiled is not None and len(obs) <= self._compiled.max_rows:
            return self._draw_alone(obs, mask)
        with self._model_lock:  # until actions are drawn: a model may reuse its arrays
            try:
                parameters, value = self.model.forward(obs, mask)
            except Exception as error:  # onnxruntime's, torch's and a user's own errors share no base class
                raise self._failure(error) from error
            return *self._choose(parameters), value

    def _draw_alone(self, obs: Tree, mask: Array | None) -> Drawn:
        """Without a lock: in what is used here, threads do not meet."""
        try:
            if self._compiled is not None:
                return self._compiled(np.asarray(obs), mask)
            assert self.model.alone is not None
            outputs = self.model.alone(np.asarray(obs))
        except Exception as error:
            raise self._failure(error) from error
        return *self._choose(outputs[0]), outputs[1] if len(outputs) > 1 else None

    def _failure(self, error: Exception) -> InferenceError:
        return InferenceError(f"policy version {self.version} failed to act: {error}")

    def _recorded_alone(
        self,
        actor_ids: tuple[UUID],
        lane: Lane,
        obs: Tree,
        mask: Array | None,
        reward: float | None,
        drawn: Drawn,
    ) -> tuple[ActionRecord, Fragments]:
        action, logp, value = drawn
        self._require_finite(action, logp, actor_ids)
        cut = self.pages.append_one(lane, obs, action, logp, value, self.version, mask, reward)
        taken = self.model.head.to_environment(action)
        return ActionRecord(actor_ids, taken, logp, value, self._version_column(1)), cut

    def _record(
        self,
        request: ActionRequest,
        action: Array,
        logp: Array | None,
        value: Array | None,
        memory: Array | None = None,
    ) -> None:
        self._require_finite(action, logp, request.actor_ids)
        reward, pages = request.reward, self.pages
        if request.num_rows == 1:
            one = reward if reward is None or isinstance(reward, float) else float(reward[0])
            request.cut = pages.append_one(
                request.lanes[0], request.obs, action, logp, value, self.version, request.mask, one, memory
            )
        else:
            assert request.numbers is not None
            assert not isinstance(reward, float)
            with pages.lock:
                self._require_open(request)
                request.cut = pages.append(
                    request.numbers, request.obs, action, logp, value, self.version, request.mask, reward, memory
                )
        taken = self.model.head.to_environment(action)
        request.record = ActionRecord(request.actor_ids, taken, logp, value, self._version_column(request.num_rows))

    def _require_finite(self, action: Array, logp: Array | None, actor_ids: tuple[UUID, ...]) -> None:
        if not (_is_finite(action) and (logp is None or _is_finite(logp))):
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


def _is_finite(numbers: Array) -> bool:
    if numbers.dtype.kind != "f":
        return True
    if numbers.size == 1:
        return math.isfinite(numbers.item())
    return math.isfinite(np.vdot(numbers, numbers)) or bool(np.isfinite(numbers).all())  # the product may overflow


def _removed(actor_id: UUID) -> ConfigError:
    return ConfigError(f"actor {actor_id} was removed; make a new one with new_actor()")


def rows_of(drawn: Drawn, start: int, end: int) -> Drawn:
    """The rows of one request."""
    action, logp, value = drawn
    return action[start:end], None if logp is None else logp[start:end], None if value is None else value[start:end]


def _with_and_without_mask(requests: Sequence[ActionRequest]) -> list[Sequence[ActionRequest]]:
    """Requests that can share a pass: those with masks and those without apart."""
    masked = [request for request in requests if request.mask is not None]
    if not masked or len(masked) == len(requests):
        return [requests]
    return [masked, [request for request in requests if request.mask is None]]


def joined(batch: Sequence[ActionRequest]) -> tuple[Tree, Array | None]:
    """Rows of all requests one below the other."""
    if len(batch) == 1:
        return batch[0].obs, batch[0].mask
    obs: Tree = map_tree(lambda *leaf: np.concatenate(leaf), *(request.obs for request in batch))
    masks = [request.mask for request in batch if request.mask is not None]
    return obs, np.concatenate(masks) if masks else None
