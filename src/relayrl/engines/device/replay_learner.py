"""Gradient steps from a replay on the device: sampling, targets, losses, optimisers and soft updates in one CUDA graph.

The steps are the algorithm's own (`OffPolicyAlgorithm.begin`). Those of TD3 whose policy waits differ from those whose policy
learns, so there is a graph for each turn of `policy_frequency`. Metrics are added up on the device.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relayrl.accelerator.device_accelerator import fastest_device_adam
from relayrl.algorithms.losses import require_finite
from relayrl.engines.device.graphed import Graphed

if TYPE_CHECKING:
    from relayrl.algorithms.off_policy import OffPolicyAlgorithm
    from relayrl.algorithms.optimizer import FlatAdam
    from relayrl.algorithms.params import OffPolicyParams
    from relayrl.engines.device.resident_replay import ResidentReplay


class ReplayLearner:
    """Takes one gradient step at a call."""

    def __init__(self, algorithm: OffPolicyAlgorithm[Any], replay: ResidentReplay, generator: torch.Generator) -> None:
        """All noise comes from `generator`."""
        self._algorithm, self._replay, self._generator = algorithm, replay, generator
        algorithm.device_noise = generator
        self._params: OffPolicyParams = algorithm.params
        self._always = torch.ones(1, device=generator.device)
        self._adams = [fastest_device_adam(optimizer) for optimizer in algorithm.optimizers()]
        for adam in self._adams:
            adam.flat.kernel = partial(self._step_optimizer, adam)
        self._graphs: dict[int, Graphed] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[int, list[str]] = {}

    def _step_optimizer(self, adam: Any, flat: FlatAdam) -> Tensor:
        del flat
        norm: Tensor = adam.step(self._always)
        return norm.reshape(())

    def take_step(self) -> dict[str, float]:
        """One gradient step; its metrics are added to those that `fetch_metrics` gives."""
        algorithm = self._algorithm
        if algorithm.params is not self._params:
            self._params, self._graphs = algorithm.params, {}
        turn = (algorithm.num_updates + 1) % max(1, getattr(algorithm, "policy_frequency", 1))
        if turn not in self._graphs:
            work = partial(self._step, turn)
            self._graphs[turn] = Graphed(work, self._generator.device, [self._generator])
        number = algorithm.num_updates + 1
        self._graphs[turn]()
        algorithm.num_updates = number  # a graph that is replayed counts nothing itself
        for name in self._names[turn]:
            self._counts[name] = self._counts.get(name, 0) + 1
        return {}

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
