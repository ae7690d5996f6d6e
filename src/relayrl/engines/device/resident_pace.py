"""How device-resident runs advance: whole iterations on the device, of which the host asks for numbers when a row is due.

- `OnPolicyPace`: a rollout and its update are one iteration, captured in a CUDA graph.
- `ReplayPace`: steps are captured and go into a replay on the device, from which the trainer's gradient steps draw there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from relayrl.accelerator.device_accelerator import compile_kernels_of, is_exactly_known
from relayrl.engines.device.graphed import Graphed
from relayrl.engines.local.overlap import Pace
from relayrl.runtime.collector import EndedEpisodes

if TYPE_CHECKING:
    from relayrl.engines.device.replay_actor import ReplayActor
    from relayrl.engines.device.replay_learner import ReplayLearner
    from relayrl.engines.device.resident_collector import ResidentCollector
    from relayrl.engines.device.resident_learner import ResidentLearner
    from relayrl.engines.local.phase_clock import PhaseClock
    from relayrl.training.statistics.run_statistics import Statistics
    from relayrl.training.trainers.policy_trainer import PolicyTrainer


class ResidentPace(Pace):
    """Advances a run on a device; episodes are fetched when a row of statistics is due."""

    shows_rollouts = False

    def __init__(
        self,
        collector: ResidentCollector,
        trainer: PolicyTrainer,
        statistics: Statistics,
        clock: PhaseClock,
        summary_freq: int,
    ) -> None:
        super().__init__(collector, clock, lambda _: {})
        self._resident, self._trainer, self._statistics = collector, trainer, statistics
        self._summary_freq, self._num_envs = summary_freq, collector.env.num_envs
        self._is_due = False

    @property
    def num_env_steps(self) -> int:
        return self._trainer.num_env_steps

    def advance(self, num_steps: int) -> None:
        trainer, before = self._trainer, self._trainer.num_env_steps
        self._iterate(num_steps)
        self._resident.count(num_steps)
        now = trainer.num_env_steps
        crossed = now // self._summary_freq > before // self._summary_freq
        self._is_due = crossed or before == 0 or now >= trainer.max_steps
        self._clock.lap("learn")

    @abstractmethod
    def _iterate(self, num_steps: int) -> None:
        """Collect so many steps of every environment, learn from them, and count both for the trainer."""

    def after_update(self, act: Callable[[], None]) -> None:
        self.settle()
        act()

    def take_ended(self) -> EndedEpisodes:
        """Those that ended since a row was due last, when one is due; those that were forgotten in between are counted."""
        if not self._is_due:
            return EndedEpisodes()
        before = self._resident.num_uncounted
        ended = self._resident.take_ended()
        self._statistics.num_episodes += self._resident.num_uncounted - before
        return ended


class ReplayPace(ResidentPace):
    """Collects, keeps, and lets the trainer take its gradient steps."""

    def __init__(self, learner: ReplayLearner, actors: Sequence[ReplayActor], *given: Any) -> None:
        """The rest is `ResidentPace`'s."""
        super().__init__(*given)
        self._learner, self._actors = learner, actors
        self._modes: list[tuple[bool, float]] = []
        self._fills: dict[int, Callable[[], Any]] = {}  # by steps of each environment
        learner.resume()

    def _iterate(self, num_steps: int) -> None:
        modes = [actor.mode for actor in self._actors]
        if modes != self._modes:
            self._modes, self._fills = modes, {}
        if num_steps not in self._fills:
            self._fills[num_steps] = self._fill(num_steps)
        self._fills[num_steps]()
        rollouts: Any = self._resident.filled(num_steps)
        self._learner.prepare()
        self._trainer.receive(rollouts)
        self._statistics.add(self._trainer.advance())

    def _fill(self, num_steps: int) -> Callable[[], Any]:
        """What steps every environment so often, captured where nobody else may change how policies explore."""
        work, device = partial(self._resident.fill, num_steps), torch.device(self._resident.env.device)
        return Graphed(work, device, [self._resident.generator]) if self._learner.explores_as_built_in else work

    def settle(self) -> None:
        self._statistics.add(self._learner.fetch_metrics())
        self._learner.pause()
        self._clock.lap("learn")


class OnPolicyPace(ResidentPace):
    """Replays a captured iteration."""

    def __init__(self, learners: Mapping[str, ResidentLearner], block_steps: int, *given: Any) -> None:
        """`block_steps` are those of each environment in a whole rollout; the rest is `ResidentPace`'s."""
        super().__init__(*given)
        self._learners, self._block_steps = learners, block_steps
        for learner in learners.values():
            learner.resume()
        self._whole = self._graphed()
        self._is_rehearsed = False

    def _iterate(self, num_steps: int) -> None:
        trainer = self._trainer
        progress = min(1.0, trainer.num_env_steps / trainer.max_steps)
        has_changed = [learner.take_params(progress) for learner in self._learners.values()]
        if any(has_changed):
            self._whole = self._graphed()
        if not self._is_rehearsed:
            self._rehearse()
        if num_steps == self._block_steps:
            self._whole()
        else:
            self._learn_from(num_steps)
        trainer.num_env_steps += num_steps * self._num_envs
        trainer.policy_version += 1

    def _graphed(self) -> Graphed:
        device = torch.device(self._resident.env.device)
        return Graphed(lambda: self._learn_from(self._block_steps), device, [self._resident.generator])

    def _rehearse(self) -> None:
        """Have compiled together what the first iteration launches, as far as no code of a user's is in it."""
        self._is_rehearsed = True
        if all(is_exactly_known(learner.update) for learner in self._learners.values()):
            compile_kernels_of(self._known_work, [self._resident.generator])

    def _known_work(self) -> None:
        rollouts = self._resident.rehearse(self._block_steps)
        for name, learner in self._learners.items():
            learner.learn(name, rollouts)

    def _learn_from(self, num_steps: int) -> None:
        rollouts = self._resident.fill(num_steps)
        for name, learner in self._learners.items():
            learner.learn(name, rollouts)

    def settle(self) -> None:
        for name, learner in self._learners.items():
            metrics = learner.fetch_metrics()
            prefix = "" if len(self._learners) == 1 else f"{name}/"
            self._statistics.add({prefix + key: number for key, number in metrics.items()})
            learner.pause()
        self._clock.lap("learn")
