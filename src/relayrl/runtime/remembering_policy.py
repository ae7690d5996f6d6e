"""A published policy with a memory: what an actor remembers lies in its lane, and is nobody else's.

Invariants, besides those of `published_policy`:

- An actor's first step of an episode sees zeros; a step sees what the step before it, in the same episode, left behind. Which
  actors share its forward pass makes no difference.
- What an actor remembers changes only when its step was recorded. A newer version of the policy goes on with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import numpy as np

from relayrl.data.trees import Array, Tree
from relayrl.errors import InferenceError
from relayrl.runtime.action_record import ActionRecord
from relayrl.runtime.published_policy import ActionRequest, Fragments, PublishedPolicy, joined, rows_of
from relayrl.runtime.step_pages import Lane


class RememberingPolicy(PublishedPolicy):
    """Serves requests with the memories of their lanes."""

    def act_alone(
        self, actor_ids: tuple[UUID], lane: Lane, obs: Tree, mask: Array | None, reward: float | None
    ) -> tuple[ActionRecord, Fragments]:
        request = ActionRequest(actor_ids, (lane,), None, -1, obs, mask, reward)
        self.batcher.run((request,))
        if request.error is not None:
            raise request.error
        assert request.record is not None
        return request.record, request.cut

    def _serve_together(self, batch: Sequence[ActionRequest]) -> None:
        lanes = [lane for request in batch for lane in request.lanes]
        before = remembered_by(lanes, self.model.layout.memory_width)
        obs, mask = joined(batch)
        try:
            with self._model_lock:  # until actions are drawn: a model may reuse its arrays
                try:
                    parameters, value, after = self.model.step(obs, mask, before)
                except Exception as error:  # onnxruntime's, torch's and a user's own errors share no base class
                    raise InferenceError(f"policy version {self.version} failed to act: {error}") from error
                drawn = (*self._choose(parameters), value)
                after = np.array(after)
        except InferenceError as error:
            for request in batch:
                request.error = error
            return
        start = 0
        for request in batch:
            rows = slice(start, start + request.num_rows)
            self._finish(request, (*rows_of(drawn, rows.start, rows.stop), before[rows], after[rows]))
            start = rows.stop

    def _record(
        self,
        request: ActionRequest,
        action: Array,
        logp: Array | None,
        value: Array | None,
        memory: Array | None = None,
        after: Array | None = None,
    ) -> None:
        super()._record(request, action, logp, value, memory)
        assert after is not None
        _remember(request.lanes, after)


def remembered_by(lanes: Sequence[Lane], width: int) -> Array:
    """[L, M] what lanes remember of their present episodes."""
    memory = np.zeros((len(lanes), width), np.float32)
    for row, lane in zip(memory, lanes, strict=True):
        if lane.memory is not None and lane.memory_episode == lane.episode:
            row[:] = lane.memory
    return memory


def _remember(lanes: Sequence[Lane], after: Array) -> None:
    for row, lane in zip(after, lanes, strict=True):
        lane.memory, lane.memory_episode = row, lane.episode
