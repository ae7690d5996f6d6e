"""Evaluating policies of a run: now and then while it learns, and at its end; in environments and with seeds of their own.

Nothing that learning draws from is touched, so a run with evaluations has the parameters of one without. The evaluations of
one run all play the same episodes; the final one plays others, since the best policy was chosen by the former.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from relayrl.accelerator.live_actor import live_actor
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.models.policy import Policy
from relayrl.runtime.evaluation import EvaluationResult, describe_bound, evaluate, make_evaluation_env
from relayrl.training.trainers.seeding import Stream, stream_seed

logger = logging.getLogger(__name__)

FINAL, DURING = 0, 1
"""Which evaluation: each has seeds of its own."""


class PeriodicEvaluation:
    """Evaluates a run's policies and remembers how well they did; `check` may stop the final evaluation."""

    def __init__(self, settings: RunSettings, policies: Mapping[str, Policy], check: Callable[[], None]) -> None:
        self._settings, self._policies, self._check = settings, policies, check
        self._env: VectorEnvironment | None = None
        self.best_return, self.last_return = -math.inf, -math.inf

    def is_due(self, steps_before: int, num_env_steps: int) -> bool:
        """Whether a multiple of the interval lies between the two."""
        interval = self._settings.evaluation.interval
        return interval is not None and num_env_steps // interval > steps_before // interval

    @property
    def has_reached_target(self) -> bool:
        """Whether the latest evaluation is good enough to stop."""
        target = self._settings.evaluation.target_return
        return target is not None and self.last_return >= target

    def during(self) -> tuple[dict[str, float], bool]:
        """Evaluate; gives metrics, and whether the policies are the best so far."""
        episodes = self._settings.evaluation.interval_episodes
        if self._env is None:
            self._env = self._make_env(episodes)
        # Never interrupted: a checkpoint at this step must come with this step's evaluation.
        result = self._play(self._env, episodes, DURING, None)
        self.last_return = result.mean_return
        is_best = self.last_return > self.best_return
        self.best_return = max(self.best_return, self.last_return)
        metrics = {
            "evaluation/return_mean": result.mean_return,
            "evaluation/return_std": result.std_return,
            "evaluation/length_mean": result.mean_length,
            "evaluation/episodes_cut": result.num_cut,
            "evaluation/best_return": self.best_return,
        }
        return metrics, is_best

    def final(self) -> EvaluationResult | None:
        """The evaluation that ends the run; None where none was asked for."""
        episodes = self._settings.evaluation.episodes
        if not episodes:
            return None
        env = self._make_env(episodes)
        try:
            return self._play(env, episodes, FINAL, lambda _: self._check())
        finally:
            env.close()

    def _make_env(self, episodes: int) -> VectorEnvironment:
        return make_evaluation_env(self._settings.env, self._settings.environment, episodes)

    def _play(
        self,
        env: VectorEnvironment,
        episodes: int,
        which: int,
        on_step: Callable[[VectorEnvironment], None] | None,
    ) -> EvaluationResult:
        actors = {name: live_actor(policy) for name, policy in self._policies.items()}
        seed = stream_seed(self._settings.seed, Stream.EVALUATION, which)
        bounds = self._settings.evaluation
        result = evaluate(env, actors, episodes=episodes, seed=seed, on_step=on_step, bounds=bounds)
        if result.stopped_by is not None:
            bound = result.stopped_by.value
            logger.warning("evaluation: %s", describe_bound(result.num_asked, result.num_ended, result.num_cut, bound))
        return result

    def state_dict(self) -> dict[str, Any]:
        """How well the policies did so far."""
        return {"best_return": self.best_return, "last_return": self.last_return}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.best_return, self.last_return = state["best_return"], state["last_return"]

    def close(self) -> None:
        """Close the environments."""
        if self._env is not None:
            self._env.close()
