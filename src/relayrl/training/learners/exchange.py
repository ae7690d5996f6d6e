"""What learners say to each other: work from the first to all, and sums of gradients among all.

    store = new_store("127.0.0.1")                                   # the first learner's
    exchange = Exchange(store, rank=0, num_learners=2)
    exchange.send(work); exchange.add_up(gradient)                   # elsewhere: exchange.receive(); exchange.add_up(gradient)

`torch.distributed`, in groups of its own: nothing of the process is changed, and several may live side by side. Work goes by
gloo in any case; gradients by what their device asks for (`backend_of`): gloo on the CPU, nccl between GPUs. Sums are the same
bits on every learner. Connections are unauthenticated, as all of `torch.distributed`'s: they listen on the loopback unless
another host is given, and what is received is unpickled. A learner that is gone is a `LearningError`.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from enum import Enum
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
import torch.distributed
from torch import Tensor

from relayrl.errors import ConfigError, LearningError

_dist: Any = torch.distributed  # its types know nothing of gloo
LOOPBACK = "127.0.0.1"
STEP_TIMEOUT = timedelta(minutes=5)
IDLE_TIMEOUT = timedelta(days=7)
"""Between two updates there may be hours of collecting; a first learner that has ended closes its connections."""


class GradientBackend(Enum):
    """What of `torch.distributed` adds gradients up."""

    GLOO = "gloo"
    NCCL = "nccl"


def backend_of(device: torch.device) -> GradientBackend:
    """The one for tensors on `device`: each learner of a GPU must have one of its own, which nccl insists on."""
    return GradientBackend.NCCL if device.type == "cuda" else GradientBackend.GLOO


def new_store(host: str = LOOPBACK) -> Any:
    """Where learners meet; the first one's process holds it, at `store.port`."""
    return _dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=STEP_TIMEOUT)


def store_at(host: str, port: int) -> Any:
    """The same, for the other learners."""
    return _dist.TCPStore(host, port, is_master=False, timeout=STEP_TIMEOUT)


class Exchange:
    """One learner's connections to all others; `rank` 0 is the first."""

    def __init__(self, store: Any, rank: int, num_learners: int, host: str = LOOPBACK) -> None:
        """`host` is this learner's own address."""
        self.rank, self.num_learners, self._store = rank, num_learners, store
        options = _dist.ProcessGroupGloo._Options()  # the only way to choose the interface
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = STEP_TIMEOUT
        self._group = _dist.ProcessGroupGloo(store, rank, num_learners, options)
        self._summing = {GradientBackend.GLOO: self._group}

    def _summing_group(self, device: torch.device) -> Any:
        """The group for sums on `device`; all learners ask for it with the same sum, so that they meet."""
        backend = backend_of(device)
        if backend not in self._summing:
            if not _dist.is_nccl_available():
                raise ConfigError("this torch has no nccl, by which several learners share GPUs; leave learners at 1")
            options = _dist.ProcessGroupNCCL.Options()
            options._timeout = STEP_TIMEOUT
            store = _dist.PrefixStore(backend.value, self._store)
            self._summing[backend] = _dist.ProcessGroupNCCL(store, self.rank, self.num_learners, options)
        return self._summing[backend]

    def part(self, count: int) -> slice:
        """This learner's of `count` items: all parts are as long, but for one."""
        return slice(self.rank * count // self.num_learners, (self.rank + 1) * count // self.num_learners)

    def add_up(self, tensor: Tensor) -> None:
        """Make `tensor` the sum of all learners' tensors."""
        try:
            self._summing_group(tensor.device).allreduce([tensor]).wait()
        except RuntimeError as error:
            raise _gone(error) from error

    def send(self, work: Any) -> None:
        """From the first learner to all others."""
        data = torch.frombuffer(bytearray(cloudpickle.dumps(work)), dtype=torch.uint8)
        self._broadcast(torch.tensor([len(data)]), STEP_TIMEOUT)
        self._broadcast(data, STEP_TIMEOUT)

    def receive(self) -> Any:
        """What the first learner sent, however long that takes."""
        size = torch.zeros(1, dtype=torch.int64)
        self._broadcast(size, IDLE_TIMEOUT)
        data = torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(data, STEP_TIMEOUT)
        return pickle.loads(data.numpy().data)

    def _broadcast(self, tensor: Tensor, timeout: timedelta) -> None:
        options = _dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, timeout
        try:
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise _gone(error) from error


def _gone(error: RuntimeError) -> LearningError:
    return LearningError(f"a learner of this run has ended or does not answer: {str(error).splitlines()[0]:.200}")
