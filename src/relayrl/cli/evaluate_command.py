"""`relayrl evaluate`: episodes with an exported policy. Runs on onnxruntime alone; torch is not loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from relayrl.config.settings_text import parse_assignment
from relayrl.data.trees import Space, space_leaves
from relayrl.envs.contract import VectorEnvironment
from relayrl.envs.on_host import on_host
from relayrl.envs.registry import make_vector
from relayrl.envs.settings import EnvSettings
from relayrl.errors import ConfigError
from relayrl.models.exported import ExportedActor
from relayrl.runtime.evaluation import EVALUATION_WORLDS, EvaluationResult, check_fits, evaluate

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
    trust: bool = False


def run(request: EvaluateRequest, *, as_json: bool) -> None:
    """Evaluate and print."""
    if request.render not in (None, "gif"):
        raise ConfigError(f"--render {request.render!r} is not supported; use --render gif")
    given = dict(parse_assignment(assignment, "--option") for assignment in request.options)
    actors, options = _load(request.run)
    trained_on = next(iter(actors.values())).metadata.env
    name = request.env or trained_on
    _require_trusted(request, name)
    trained_with, options = options, {**(options if name == trained_on else {}), **given}
    result = _play(request, actors, name, options, trained_with)
    picture = _draw(request, actors, name, options) if request.render else None
    typer.echo(f"{len(result.returns)} episodes: return {result.mean_return:.2f} ± {result.std_return:.2f}")
    if picture is not None:
        typer.echo(f"picture: {picture}")
    if as_json:
        values = {"env": name, "mean_return": result.mean_return, "std_return": result.std_return}
        values |= {"episodes": len(result.returns), "returns": list(result.returns), "lengths": list(result.lengths)}
        typer.echo(json.dumps(values))


def _require_trusted(request: EvaluateRequest, name: str) -> None:
    from relayrl.engines.trust import require_trusted

    how = "add --env {} or --trust"
    require_trusted(name, request.run, named=(request.env,), trust=request.trust, how=how)


def _load(path: Path) -> tuple[dict[str, ExportedActor], dict[str, Any]]:
    """Policies by group, and the options of the environment they were trained on."""
    if path.suffix == ".onnx":
        actor = ExportedActor(path)
        return {actor.metadata.group: actor}, {}
    from relayrl.engines.run_directory import RunDirectory

    directory = RunDirectory(path)
    settings = directory.settings()
    models = directory.models()
    if not models:
        raise ConfigError(f"{path} has no exported model yet; finish the run or write one with: relayrl export {path}")
    actors = [ExportedActor(model) for model in models]
    return {actor.metadata.group: actor for actor in actors}, settings.environment.options


def _play(
    request: EvaluateRequest,
    actors: dict[str, ExportedActor],
    name: str,
    options: dict[str, Any],
    trained_with: dict[str, Any],
) -> EvaluationResult:
    env = _make(name, min(request.episodes, EVALUATION_WORLDS), options)
    try:
        check_fits(env, actors)
        _require_same_spaces(env, actors, options, trained_with)
        rng = np.random.default_rng(request.seed) if request.stochastic else None
        return evaluate(env, actors, episodes=request.episodes, seed=request.seed, rng=rng)
    finally:
        env.close()


def _require_same_spaces(
    env: VectorEnvironment, actors: dict[str, ExportedActor], options: dict[str, Any], trained_with: dict[str, Any]
) -> None:
    """Raise `ConfigError` where the policies cannot act in the environment, with the options that may be why."""
    differ = [
        f"{key} (trained with {trained_with.get(key, 'its default')}, now {options.get(key, 'its default')})"
        for key in {**trained_with, **options}
        if trained_with.get(key) != options.get(key)
    ]
    hint = f"options that differ: {', '.join(differ)}" if differ else "its options or --env differ from training"
    for group, actor in actors.items():
        here, trained = env.groups[group], actor.metadata
        pairs = {
            "observation": (here.observation_space, trained.observation_space),
            "action": (here.action_space, trained.action_space),
        }
        for what, (space, expected) in pairs.items():
            if _form(space) != _form(expected):
                raise ConfigError(
                    f"the {what} space of {group!r} is {space!s:.100}, the policy was trained with {expected!s:.100}; "
                    f"{hint:.300}"
                )


def _form(space: Space) -> list[Any]:
    """What a policy relies on: everything but the bounds, which differ between implementations of one environment."""
    counts = [getattr(leaf, "nvec", getattr(leaf, "n", None)) for _, leaf in space_leaves(space)]
    return [
        (path, type(leaf), leaf.shape, leaf.dtype, np.asarray(count).tolist())
        for (path, leaf), count in zip(space_leaves(space), counts, strict=True)
    ]


def _make(name: str, num_envs: int, options: dict[str, Any]) -> VectorEnvironment:
    from relayrl.engines.plugins import environment_name

    return on_host(make_vector(environment_name(name), EnvSettings(num_envs=num_envs, options=options)))


def _draw(request: EvaluateRequest, actors: dict[str, ExportedActor], name: str, options: dict[str, Any]) -> Path:
    """One episode as an animated picture beside the model."""
    env = _make(name, 1, options)
    frames: list[Any] = []

    def keep_frame(world: VectorEnvironment) -> None:
        render = getattr(world, "render", None)
        if render is None:
            raise ConfigError(f"{name} cannot be drawn; native environments can: see `relayrl list envs`")
        if len(frames) < GIF_MAX_FRAMES:
            frames.append(render(0))

    try:
        rng = np.random.default_rng(request.seed) if request.stochastic else None
        evaluate(env, actors, episodes=1, seed=request.seed, rng=rng, on_step=keep_frame)
    finally:
        env.close()
    path = (request.run if request.run.is_dir() else request.run.parent) / "episode.gif"
    _write_gif(path, frames)
    return path


def _write_gif(path: Path, frames: list[Any]) -> None:
    from PIL import Image

    images = [Image.fromarray(np.asarray(frame)) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=50, loop=0)
