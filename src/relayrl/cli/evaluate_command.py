"""`relayrl evaluate`: episodes with an exported policy. Runs on onnxruntime alone; torch is not loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
import yaml

from relayrl.envs.contract import VectorEnvironment
from relayrl.envs.settings import EnvSettings, EvaluationBounds
from relayrl.errors import ConfigError
from relayrl.models.exported import ExportedActor
from relayrl.runtime.evaluation import (
    DEFAULT_BOUNDS,
    EvaluationResult,
    check_fits,
    describe_bound,
    evaluate,
    make_evaluation_env,
)

GIF_MAX_FRAMES = 500


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """What the user asked for."""

    run: Path
    env: str | None
    options: list[str]
    episodes: int
    seed: int
    stochastic: bool
    render: str | None
    max_episode_steps: int | None = None
    timeout_s: float | None = None


def run(request: EvaluateRequest, *, as_json: bool) -> None:
    """Evaluate and print."""
    if request.render not in (None, "gif"):
        raise ConfigError(f"--render {request.render!r} is not supported; use --render gif")
    given = _given_options(request.options)
    actors, environment, bounds = _load(request)
    name = request.env or next(iter(actors.values())).metadata.env
    environment = environment.model_copy(update={"options": {**environment.options, **given}})
    bounds = bounds.bounded(request.max_episode_steps, request.timeout_s)
    result = _play(request, actors, name, environment, bounds)
    picture = _draw(request, actors, name, environment, bounds) if request.render else None
    typer.echo(f"{len(result.returns)} episodes: return {result.mean_return:.2f} ± {result.std_return:.2f}")
    bound = None if result.stopped_by is None else result.stopped_by.value
    if bound is not None:
        typer.echo(describe_bound(result.num_asked, result.num_ended, result.num_cut, bound))
    if picture is not None:
        typer.echo(f"picture: {picture}")
    if as_json:
        values: dict[str, Any] = {"env": name, "mean_return": result.mean_return, "std_return": result.std_return}
        values = {key: None if value != value else value for key, value in values.items()}  # NaN is no JSON
        values |= {"episodes": len(result.returns), "returns": list(result.returns), "lengths": list(result.lengths)}
        counts = {"asked": result.num_asked, "ended": result.num_ended, "cut": result.num_cut}
        values |= {f"episodes_{what}": count for what, count in counts.items()} | {"stopped_by": bound}
        typer.echo(json.dumps(values))


def _given_options(assignments: list[str]) -> dict[str, Any]:
    options = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--option {assignment!r} has no value; write it as --option key=value")
        options[key.strip()] = yaml.safe_load(text)
    return options


def _load(request: EvaluateRequest) -> tuple[dict[str, ExportedActor], EnvSettings, EvaluationBounds]:
    """Policies by group, how the environment that they were trained on is run, and the bounds of the run's evaluations."""
    path = request.run
    if path.suffix == ".onnx":
        actor = ExportedActor(path)
        return {actor.metadata.group: actor}, EnvSettings(), DEFAULT_BOUNDS
    from relayrl.engines.run_directory import RunDirectory

    directory = RunDirectory(path)
    settings = directory.settings()
    models = directory.models()
    if not models:
        raise ConfigError(f"{path} has no exported model yet; finish the run or write one with: relayrl export {path}")
    actors = [ExportedActor(model) for model in models]
    environment = settings.environment
    if request.env is not None:  # Which agents share a policy is the policies' matter, all else the environment's.
        environment = EnvSettings(sharing=environment.sharing)
    return {actor.metadata.group: actor for actor in actors}, environment, settings.evaluation


def _play(
    request: EvaluateRequest,
    actors: dict[str, ExportedActor],
    name: str,
    environment: EnvSettings,
    bounds: EvaluationBounds,
    on_step: Callable[[VectorEnvironment], None] | None = None,
) -> EvaluationResult:
    from relayrl.engines.plugins import environment_name

    env = make_evaluation_env(environment_name(name), environment, request.episodes)
    try:
        check_fits(env, actors)
        rng = np.random.default_rng(request.seed) if request.stochastic else None
        return evaluate(
            env, actors, episodes=request.episodes, seed=request.seed, rng=rng, on_step=on_step, bounds=bounds
        )
    finally:
        env.close()


def _draw(
    request: EvaluateRequest,
    actors: dict[str, ExportedActor],
    name: str,
    environment: EnvSettings,
    bounds: EvaluationBounds,
) -> Path:
    """One episode as an animated picture beside the model, at most `GIF_MAX_FRAMES` long."""
    frames: list[Any] = []

    def keep_frame(world: VectorEnvironment) -> None:
        render = getattr(world, "render", None)
        if render is None:
            raise ConfigError(f"{name} cannot be drawn; native environments can: see `relayrl list envs`")
        frames.append(render(0))

    short = bounds.bounded(min(bounds.max_episode_steps, GIF_MAX_FRAMES), None)
    _play(replace(request, episodes=1), actors, name, environment, short, keep_frame)
    path = (request.run if request.run.is_dir() else request.run.parent) / "episode.gif"
    _write_gif(path, frames)
    return path


def _write_gif(path: Path, frames: list[Any]) -> None:
    from PIL import Image

    images = [Image.fromarray(np.asarray(frame)) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=50, loop=0)
