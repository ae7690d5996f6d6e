"""Opponents of an evaluation by name: `random`, or whatever was exported, by a run directory or an .onnx file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor
from relayrl.models.exports.exported import ExportedActor
from relayrl.runtime.scored_agents import PREVIOUS, RANDOM, random_actors
from relayrl.training.trainer_settings import EvaluationSettings, Opponent


def named_opponents(names: Sequence[str], actors: Mapping[str, Actor]) -> dict[str, Mapping[str, Actor]]:
    """What acts for the opponents of `actors`, by name; raises where a file has no policy for one of the groups."""
    found: dict[str, Mapping[str, Actor]] = {}
    for name in names:
        if name == RANDOM:
            found[name] = random_actors(actors)
            continue
        if name == PREVIOUS:
            raise ConfigError(
                "opponent 'previous' exists while a run trains; name an earlier run directory or .onnx file"
            )
        policies = {actor.metadata.group: actor for actor in map(ExportedActor, _models(Path(name)))}
        if set(policies) != set(actors):
            raise ConfigError(f"opponent {name} has policies {sorted(policies)}, the evaluated ones {sorted(actors)}")
        found[name] = policies
    return found


def _models(path: Path) -> list[Path]:
    if path.suffix == ".onnx":
        return [path]
    models = RunDirectory(path).models()
    if not models:
        raise ConfigError(f"opponent {path}: no exported policy there; give random, a run directory or an .onnx file")
    return models


def opponents_of(settings: EvaluationSettings) -> list[str] | None:
    """The opponents that a run's settings name, as far as they outlive the run; None: as the game turns out."""
    if settings.opponents is None:
        return None
    return [one.value for one in settings.opponents if one is not Opponent.PREVIOUS]
