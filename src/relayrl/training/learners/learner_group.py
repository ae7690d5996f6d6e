"""The learners of a run, seen from the first one, which is the run itself: starts the others, gives them work, ends them.

    group = LearnerGroup(num_learners=2, threads=1)
    algorithm = PPO(policy, params, rng, group.backend)
    group.close()

Processes start with the first update. They hold nothing of their own: each update brings the state that it begins with, so a
checkpoint is the first learner's alone. A learner that dies ends the run with an error that says so; it goes on from its
checkpoint.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Protocol

import torch

from relayrl.algorithms.losses import Objective
from relayrl.algorithms.on_policy import Backend
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.torch_update import TorchUpdate
from relayrl.errors import LearningError
from relayrl.models.policy import ActorCritic
from relayrl.training.learners.exchange import LOOPBACK, Exchange, new_store
from relayrl.training.learners.split_update import split_update

_log = logging.getLogger("relayrl.training.learners.learner_group")
END_TIMEOUT_S = 10.0
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class LearnerPlace:
    """Which of the learners one is, and where it meets the others."""

    host: str
    port: int
    rank: int
    num_learners: int
    threads: int


@dataclass(frozen=True, slots=True)
class Replica:
    """What another learner needs before it can take part in the updates of a policy."""

    policy: ActorCritic
    objective: Objective
    max_norms: tuple[float, float]


class LaunchedLearner(Protocol):
    """A learner that was started."""

    def end(self) -> None:
        """Wait until it has ended, and make it end where that takes too long."""


Launch = Callable[[LearnerPlace], LaunchedLearner]


def own_gpu(rank: int) -> dict[str, str]:
    """The variable by which a process of this machine sees a GPU of its own, where there are several: nccl takes no two
    learners on one."""
    count = torch.cuda.device_count()
    if count < 2:
        return {}
    seen = os.environ.get(_GPUS)
    names = [str(number) for number in range(count)] if not seen else seen.split(",")
    return {_GPUS: names[rank % len(names)]}


class LearnerProcess:
    """A learner in a process of this machine."""

    def __init__(self, place: LearnerPlace) -> None:
        command = [sys.executable, "-m", "relayrl.training.learners.learner_process", *map(str, astuple(place))]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **own_gpu(place.rank)})

    def end(self) -> None:
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class LearnerGroup:
    """See the module's docstring."""

    def __init__(self, num_learners: int, threads: int = 1, launch: Launch = LearnerProcess) -> None:
        self.num_learners, self._threads, self._launch = num_learners, threads, launch
        self._host = LOOPBACK
        self._replicas: list[Replica] = []
        self._learners: list[LaunchedLearner] = []
        self._exchange: Exchange | None = None

    def place(self, launch: Launch, host: str) -> None:
        """Have the others elsewhere, before the first update: `launch` starts one, which finds this one at `host`."""
        if self._exchange is not None:
            raise LearningError("the learners have been started; place them before the first update")
        self._launch, self._host = launch, host

    @property
    def backend(self) -> Backend:
        """What algorithms learn by."""
        return Backend(update=self._update)

    def _update(
        self, policy: ActorCritic, objective: Objective, pi_optimizer: FlatAdam, vf_optimizer: FlatAdam
    ) -> TorchUpdate:
        update = split_update(policy, objective, pi_optimizer, vf_optimizer)
        update.which, update.exchange = len(self._replicas), self._connected
        self._replicas.append(Replica(policy, objective, (pi_optimizer.max_norm, vf_optimizer.max_norm)))
        if self._exchange is not None:
            self._exchange.send(self._replicas[-1])
        return update

    def _connected(self) -> Exchange:
        if self._exchange is None:
            self._exchange = self._start()
        return self._exchange

    def _start(self) -> Exchange:
        store = new_store(self._host)
        for rank in range(1, self.num_learners):
            place = LearnerPlace(self._host, store.port, rank, self.num_learners, self._threads)
            self._learners.append(self._launch(place))
        _log.info("%d learners take each gradient step together, %d threads each", self.num_learners, self._threads)
        exchange = Exchange(store, 0, self.num_learners, self._host)
        for replica in self._replicas:
            exchange.send(replica)
        return exchange

    def close(self) -> None:
        """End the other learners; may be called again."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            try:
                exchange.send(None)
            except LearningError as error:
                _log.info("%s", error)
        while self._learners:
            self._learners.pop().end()
