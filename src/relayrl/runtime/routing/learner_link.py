"""The way of trajectories to a trainer, and of new policies back to the actors.

    actor ──trajectory──▶ queue ──▶ learner.receive_trajectory, learner.advance ──new version?──▶ actors

A learner learns in the threads that ask for actions or, if it is `threaded`, in a thread of its own:

- In the callers' threads, a request or an episode's end that finds trajectories waiting learns from them before it goes on.
  With one thread, everything is repeatable bit for bit, and no action comes from a policy that is older than what was learned.
- In its own thread, actors go on with the newest policy meanwhile. The queue is bounded: who asks for an action, or ends an
  episode, waits while it is full, and gets `BufferFullError` after the push-back's deadline.

What the learner raises is raised, as `LearningError`, by every request from then on; nothing is learned after it. `stop` gives
back what did not get through. Not its job: sinks, which get the same trajectories (`router`), and how learners learn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, runtime_checkable
from uuid import UUID

from relayrl.data.columns import Trajectory
from relayrl.data.steps.step_rows import ActingLayout
from relayrl.data.trees import same_columns
from relayrl.errors import BufferFullError, ConfigError, LearningError
from relayrl.models.acting.live_policy import LivePolicy
from relayrl.runtime.agents.runtime_metrics import RuntimeMetrics
from relayrl.runtime.requests.policy_model import PolicyModel, load_model

_log = logging.getLogger("relayrl.runtime.routing.learner_link")
_POLL_S = 0.2
DEFAULT_QUEUE_SIZE = 32
DEFAULT_MAX_POLICY_LAG = 1


class Learner(Protocol):
    """What an agent can train with: a trainer of this process, or what stands for one elsewhere."""

    @property
    def threaded(self) -> bool:
        """Whether it learns in a thread of its own."""

    @property
    def policy_version(self) -> int:
        """The version of its policies; grows when they change."""

    def bound_policy_lag(self, max_policy_lag: int) -> None:
        """Leave out steps whose policy is more than so many versions old, where learning needs steps of its own policy."""

    def receive_trajectory(self, trajectory: Trajectory) -> bool:
        """Take a trajectory."""

    def advance(self) -> None:
        """Learn, if there is enough to learn from; may write statistics and checkpoints."""

    def live_policies(self) -> Mapping[str, LivePolicy]:
        """The present policies by group."""

    def group_of(self, agent_id: str) -> str:
        """The group whose policy an agent acts with."""


@runtime_checkable
class WaitsForAgents(Protocol):
    """A learner that learns from an episode of several agents when all of them have delivered it."""

    def expect_only(self, env_id: UUID, episode: int | None, agent_ids: Collection[str]) -> None:
        """Nobody else takes part in an episode of an environment or, with None, in any of them."""


class LearnerLink:
    """See the module's docstring. All methods may be called from any thread."""

    def __init__(
        self,
        learner: Learner,
        metrics: RuntimeMetrics,
        *,
        device: str,
        max_policy_lag: int | None,
        queue_size: int,
        timeout_s: float,
    ) -> None:
        if queue_size < 1:
            raise ConfigError(f"queue_size is {queue_size}; the queue to the trainer holds at least one trajectory")
        self._learner, self._device, self._queue_size, self._timeout_s = learner, device, queue_size, timeout_s
        self._metrics = metrics
        metrics.unlearned.follow(lambda: self.num_waiting)
        if max_policy_lag is not None:
            learner.bound_policy_lag(max_policy_lag)
        self._publish: Callable[[PolicyModel], None] = lambda model: None
        self._queue: deque[Trajectory] = deque()
        self._changed, self._working = threading.Condition(), threading.Lock()
        self._num_taken = 0
        self._is_stopping = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._take_policies()

    @property
    def num_waiting(self) -> int:
        """Trajectories that the learner has not taken, or is learning from."""
        return len(self._queue) + self._num_taken

    def model_for(self, agent_id: str | None, actor_id: UUID) -> PolicyModel:
        """What an agent acts with; without an id, the actor's stands for it. `ConfigError` where the trainer knows no such."""
        try:
            group = self._learner.group_of(str(actor_id) if agent_id is None else agent_id)
        except ConfigError as error:
            if agent_id is not None:
                raise
            raise ConfigError(
                f"the trainer has policies {sorted(self._models)} for agents that it knows by name; make actors with "
                "new_actor(agent_id=…), and build the agent with actor_count(0)"
            ) from error
        if group not in self._models:  # it was registered since
            self._take_policies()
        return self._models[group]

    def require_learnable(self, agent_id: str | None, actor_id: UUID, layout: ActingLayout) -> None:
        """`ConfigError` where the trainer would refuse what an actor with a policy of `layout` records."""
        if agent_id is None and layout.group in self._models:  # environments of its own name the agents
            own = self._models[layout.group].layout
        else:
            own = self.model_for(agent_id, actor_id).layout
        fits = same_columns(layout.observation_space, own.observation_space)
        if not fits or layout.action_space != own.action_space:
            raise ConfigError(
                f"an actor maps {layout.observation_space} to {layout.action_space}, the trainer "
                f"{own.observation_space} to {own.action_space}; give the trainer the actor's spaces"
            )

    @property
    def models(self) -> tuple[PolicyModel, ...]:
        """The newest policies, frozen."""
        return tuple(self._models.values())

    def acted_in(self, env_id: UUID, episode: int | None, agent_ids: Collection[str]) -> None:
        """An episode of an environment, or every one, is of these agents only: the learner need not wait for others."""
        if isinstance(self._learner, WaitsForAgents):
            self._learner.expect_only(env_id, episode, agent_ids)

    def start(self, publish: Callable[[PolicyModel], None]) -> None:
        """Begin to learn; `publish` gives a new policy to the actors."""
        self._publish, self._is_stopping = publish, False
        if self._learner.threaded:
            self._thread = threading.Thread(target=self._run, name="relayrl-learner", daemon=True)
            self._thread.start()

    def put(self, trajectory: Trajectory) -> None:
        """Hand a trajectory over; never waits."""
        with self._changed:
            self._queue.append(trajectory)
            self._changed.notify_all()

    def is_pressed(self) -> bool:
        """Whether `before_request` has something to do; cheap."""
        return self._error is not None or (bool(self._queue) if self._thread is None else self._is_full())

    def before_request(self, check: Callable[[], None]) -> None:
        """Learn from what waits or, beside a thread, wait for room; raises what the learner raised.

        `check` is called every now and then and may raise.
        """
        self._raise_if_failed()
        if self._thread is None:
            self.learn_here()
            return
        if not self._is_full():
            return
        self._metrics.push_backs.inc()
        deadline = time.monotonic() + self._timeout_s
        while self._is_full():
            check()
            if time.monotonic() >= deadline:
                raise BufferFullError(
                    f"{self.num_waiting} trajectories wait for the trainer, and there was no room within "
                    f"{self._timeout_s} s; use smaller updates, a larger queue_size, or raise router_buffer"
                )
            with self._changed:
                self._changed.wait_for(lambda: not self._is_full() or self._error is not None, _POLL_S)
            self._raise_if_failed()

    def learn_here(self) -> None:
        """Learn in this thread from what waits, unless the learner has a thread."""
        if self._thread is not None or not self._queue:
            return
        with self._working:
            self._raise_if_failed()
            try:
                self._learn()
            except BaseException as error:
                self._fail(error)
                if isinstance(error, Exception):
                    self._raise_if_failed()
                raise  # Ctrl-C in the middle of an update: what it made of the policy is not to be trusted

    def stop(self, deadline_s: float) -> tuple[list[Trajectory], BaseException | None]:
        """Learn from what is there until `time.monotonic()` is `deadline_s`; gives what was not taken, and what went wrong."""
        thread = self._thread
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if thread is None:
            with self._working:
                try:
                    if self._error is None:
                        self._learn()
                except Exception as error:  # noqa: BLE001 - a learner may raise anything; it is in the report
                    self._fail(error)
        else:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                _log.error("the trainer is still learning at the shutdown's deadline")
            self._thread = None
        with self._changed:
            left = list(self._queue)
            self._queue.clear()
        return left, self._error

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._is_stopping)
                    if not self._queue:
                        return
                self._learn()
        except BaseException as error:  # noqa: BLE001 - whatever it is, requests raise it
            self._fail(error)

    def _learn(self) -> None:
        """Take all that waits, learn, and publish what came of it."""
        while self._queue:
            trajectory = self._queue[0]
            self._learner.receive_trajectory(trajectory)
            with self._changed:
                self._queue.popleft()
                self._num_taken += 1
        self._learner.advance()
        if self._learner.policy_version != self._version:  # perhaps by what another agent brought
            self._take_policies()
            for model in self._models.values():
                self._publish(model)
        with self._changed:
            self._num_taken = 0
            self._changed.notify_all()

    def _take_policies(self) -> None:
        """Copy the learner's policies: it goes on changing its own."""
        live, self._version = self._learner.live_policies(), self._learner.policy_version
        self._models = {name: load_model(policy, self._device) for name, policy in live.items()}

    def _is_full(self) -> bool:
        return self.num_waiting >= self._queue_size

    def _fail(self, error: BaseException) -> None:
        _log.error("the trainer failed", exc_info=error)
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            kind = type(self._error).__name__
            raise LearningError(f"the trainer failed, and learns no more: {kind}: {self._error}") from self._error
