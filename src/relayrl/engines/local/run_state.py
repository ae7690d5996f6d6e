"""Everything that decides the future of a run, as one tree of data, and a run that continues from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from relayrl.engines.local.periodic_evaluation import PeriodicEvaluation
from relayrl.engines.local.run_parts import RunParts
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.errors import CheckpointError, EnvError
from relayrl.training.files.weights import weights_of, with_weights
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.trainers.seeding import Stream, stream_seed


def capture(parts: RunParts, statistics: Statistics, evaluation: PeriodicEvaluation, seconds: float) -> dict[str, Any]:
    """The state between two updates."""
    return {
        "trainer": parts.trainer.state_dict(),
        "collector": parts.collector.state_dict(),
        "signals": parts.signals.state_dict(),
        "statistics": statistics.state_dict(),
        "evaluation": evaluation.state_dict(),
        "recorder": None if parts.recorder is None else parts.recorder.state_dict(),
        "self_play": None if parts.league is None else parts.league.state_dict(),
        "seconds": seconds,
    }


def restore(
    state: Mapping[str, Any],
    parts: RunParts,
    statistics: Statistics,
    evaluation: PeriodicEvaluation,
    settings: RunSettings,
) -> tuple[float, bool]:
    """Continue from `capture`; gives the seconds that the run has taken so far, and whether its episodes go on as they were."""
    try:
        return _restore(state, parts, statistics, evaluation, settings)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # What the parts do not recognise in it, each says in words of its own.
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the checkpoint does not fit; it is another run's: {reason:.300}") from error


def _restore(
    state: Mapping[str, Any],
    parts: RunParts,
    statistics: Statistics,
    evaluation: PeriodicEvaluation,
    settings: RunSettings,
) -> tuple[float, bool]:
    parts.trainer.load_state_dict(state["trainer"])
    _copy_to_acting(parts)
    parts.signals.load_state_dict(state["signals"])
    statistics.load_state_dict(state["statistics"])
    evaluation.load_state_dict(state["evaluation"])
    if parts.league is not None:
        parts.league.load_state_dict(state["self_play"])
    return state["seconds"], _go_on_collecting(state["collector"], parts, settings)


def _go_on_collecting(state: dict[str, Any], parts: RunParts, settings: RunSettings) -> bool:
    """Continue the collector; gives whether its episodes go on as they were."""
    # Not the seed of the run's start: the first episodes would be played again.
    seed = stream_seed(settings.seed, Stream.ENVIRONMENT, parts.trainer.num_env_steps)
    goes_on = parts.collector.load_state_dict(state, seed=seed)
    if not goes_on:
        parts.trainer.environments_restarted()
    return goes_on


def begin_new_episodes(parts: RunParts) -> None:
    """Give up the running episodes, between two rollouts; records hold them as cut off behind their last step."""
    rest = parts.collector.cut_off(parts.trainer.policy_version, EnvError("the episode was given up"))
    if rest and parts.recorder is not None:
        parts.recorder.record(rest)
    parts.collector.restart()
    parts.trainer.environments_restarted()


@contextlib.contextmanager
def environments_lent(parts: RunParts, settings: RunSettings) -> Iterator[VectorEnvironment]:
    """The training environments for something else, between two rollouts. Their episodes go on afterwards where their state
    can be saved; elsewhere the running ones are given up, as when a run is resumed."""
    state = parts.collector.state_dict()
    yield parts.env
    _go_on_collecting(state, parts, settings)


def record_continuation(state: Mapping[str, Any], parts: RunParts, settings: RunSettings) -> Callable[[], None]:
    """What makes the recorder, if there is one, go on where `capture` left it: called before the first step."""
    recorder, url = parts.recorder, settings.record
    if recorder is None or url is None:
        return lambda: None
    from relayrl.engines.local.recorded_ahead import find_ahead, lane_positions
    from relayrl.engines.local.run_recorder import saved_open_rows

    saved = state.get("recorder")
    positions = lane_positions(state["collector"], parts.env.groups, saved_open_rows(saved).values())
    return lambda: recorder.go_on(saved, find_ahead(url, positions)) if positions else None


def start_from(state: Mapping[str, Any], parts: RunParts) -> None:
    """Take over networks only."""
    parts.trainer.load_state_dict(with_weights(parts.trainer.state_dict(), weights_of(state["trainer"])))
    _copy_to_acting(parts)


def _copy_to_acting(parts: RunParts) -> None:
    for name, policy in parts.acting.items():
        if policy is not parts.policies[name]:
            policy.load_state_dict(parts.policies[name].state_dict())
