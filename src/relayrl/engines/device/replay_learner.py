"""Gradient steps from a replay on the device: sampling, targets, losses, optimisers and soft updates of several steps in one
CUDA graph.

The steps are the algorithm's own (`OffPolicyAlgorithm.begin`). Those of TD3 whose policy waits differ from those whose policy
learns, so there is a graph for each turn of `policy_frequency` that the first step may be. Metrics are added up on the device.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relayrl.accelerator.device_accelerator import fastest_device_adam, fuse_replay_networks
from relayrl.algorithms.losses import require_finite
from relayrl.algorithms.off_policy import OffPolicyAlgorithm
from relayrl.engines.device.graphed import Graphed

if TYPE_CHECKING:
    from relayrl.algorithms.optimizer import FlatAdam
    from relayrl.algorithms.params import OffPolicyParams
    from relayrl.engines.device.resident_replay import ResidentReplay


MAX_STEPS_IN_GRAPH = 16
"""Gradient steps that are captured together; more are several graphs, so that capturing takes seconds at most."""


class ReplayLearner:
    """Takes the gradient steps of an update at a call."""

    def __init__(self, algorithm: OffPolicyAlgorithm[Any], replay: ResidentReplay, generator: torch.Generator) -> None:
        """All noise comes from `generator`."""
        self._algorithm, self._replay, self._generator = algorithm, replay, generator
        algorithm.device_noise = generator
        fuse_replay_networks(algorithm)
        self._params: OffPolicyParams = algorithm.params
        self._always = torch.ones(1, device=generator.device)
        self._adams = [fastest_device_adam(optimizer) for optimizer in algorithm.optimizers()]
        for adam in self._adams:
            adam.flat.kernel = partial(self._step_optimizer, adam)
        self._graphs: dict[tuple[int, int], Graphed] = {}  # by the first step's turn, and the number of steps
        self._before = 0
        """Gradient steps before those that are taken or captured now."""
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[int, list[str]] = {}

    @property
    def explores_as_built_in(self) -> bool:
        """Whether exploration depends on the params alone; a user's `explore` may change anything between two rollouts."""
        own = self._algorithm
        return type(own).explore is OffPolicyAlgorithm.explore and "explore" not in vars(own)

    def _step_optimizer(self, adam: Any, flat: FlatAdam) -> Tensor:
        del flat
        norm: Tensor = adam.step(self._always)
        return norm.reshape(())

    def take_steps(self, num_steps: int) -> tuple[()]:
        """So many gradient steps; their metrics are added to those that `fetch_metrics` gives."""
        for begin in range(0, num_steps, MAX_STEPS_IN_GRAPH):
            self._take_few(min(MAX_STEPS_IN_GRAPH, num_steps - begin))
        return ()

    def _take_few(self, num_steps: int) -> None:
        algorithm = self._algorithm
        if algorithm.params is not self._params:
            self._params, self._graphs = algorithm.params, {}
        self._before = before = algorithm.num_updates
        key = self._turn(before + 1), num_steps
        if key not in self._graphs:
            work = partial(self._steps, num_steps)
            self._graphs[key] = Graphed(work, self._generator.device, [self._generator])
        self._graphs[key]()
        algorithm.num_updates = before + num_steps  # a graph that is replayed counts nothing itself
        for number in range(before + 1, before + num_steps + 1):
            for name in self._names[self._turn(number)]:
                self._counts[name] = self._counts.get(name, 0) + 1

    def _turn(self, number: int) -> int:
        """Whose turn it is at a gradient step of this number: steps of one turn do the same."""
        return int(number % max(1, getattr(self._algorithm, "policy_frequency", 1)))

    def _steps(self, num_steps: int) -> None:
        for number in range(self._before + 1, self._before + num_steps + 1):
            self._algorithm.num_updates = number - 1  # `begin` counts it
            self._step(self._turn(number))

    def _step(self, turn: int) -> None:
        params = self._params
        metrics, _ = self._algorithm.begin(self._replay.sample_on_device(params.batch_size, gamma=params.gamma))
        self._names[turn] = list(metrics)
        for name, number in metrics.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), device=self._generator.device)
            self._sums[name] += number

    def prepare(self) -> None:
        """Go by the rates and the size of the replay as they are now, which graphs read from tensors."""
        for adam in self._adams:
            adam.lr.fill_(adam.flat.lr)

    def fetch_metrics(self) -> dict[str, float]:
        """Means since the last call. Waits for the device; a loss that is not finite raises."""
        counted = {name: self._sums[name] / count for name, count in self._counts.items() if count}
        metrics = dict(zip(counted, torch.stack(list(counted.values())).tolist(), strict=True)) if counted else {}
        for total in self._sums.values():
            total.zero_()
        self._counts = {}
        for name, number in metrics.items():
            if name.endswith("policy/loss"):
                require_finite(number, "policy", "actor_lr")
            elif name.endswith("value/loss"):
                require_finite(number, "Q", "critic_lr")
        return metrics

    def pause(self) -> None:
        """Let the optimisers' states be what they are on the device."""
        for adam in self._adams:
            adam.pull()

    def resume(self) -> None:
        """Go on from the optimisers' states."""
        for adam in self._adams:
            adam.push()
