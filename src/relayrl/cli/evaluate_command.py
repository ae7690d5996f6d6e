"""`relayrl evaluate`: episodes with an exported policy. Runs on onnxruntime alone; torch is not loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from relayrl.cli.environment_options import with_given
from relayrl.config.plugin_registry import explaining_registrations
from relayrl.config.settings import parse_settings
from relayrl.data.trees import Space, space_leaves
from relayrl.envs.environment_contract import AgentGroup, VectorEnvironment
from relayrl.envs.environment_settings import AROUND, EnvSettings, EvaluationBounds
from relayrl.errors import ConfigError, DecodeError
from relayrl.models.acting.actor import Actor
from relayrl.models.exports.exported import ExportedActor
from relayrl.runtime.evaluation import EvaluationResult, check_fits, describe_bound, evaluate, make_evaluation_env
from relayrl.runtime.pictures.film import Film, Watcher, Window, watcher_of
from relayrl.runtime.scored_agents import EVERYBODY, ScoredAgents
from relayrl.training.files.atomic_files import write_whole
from relayrl.training.trainer_settings import EvaluationSettings

if TYPE_CHECKING:
    from relayrl.engines.settings.self_play_settings import SelfPlaySettings

_MAX_SPACE_TEXT = 100


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """What the user asked for."""

    run: Path
    env: str | None
    given: dict[str, Any]
    """Values of `EnvSettings`."""
    episodes: int
    seed: int
    stochastic: bool
    render: str | None
    trust: bool = False
    max_episode_steps: int | None = None
    timeout_s: float | None = None
    group: str | None = None
    agent: str | None = None
    opponents: list[str] | None = None
    tiles: int = 1
    num_envs: int | None = None
    workers: int | None = None


def run(request: EvaluateRequest, *, as_json: bool) -> None:
    """Evaluate and print."""
    watcher = None if request.render is None else watcher_of(request.render, request.tiles)
    actors, trained, evaluation, self_play = _load(request.run)
    trained_on = next(iter(actors.values())).metadata.env
    name = request.env or trained_on
    # Which agents share a policy and what is put around an environment are the policies' matter, all else the environment's.
    same = trained if name == trained_on else EnvSettings(sharing=trained.sharing, **trained.around())
    environment = with_given(same, request.given)
    _require_trusted(request, name, environment)
    if request.workers is not None:
        environment = environment.model_copy(update={"workers": request.workers})
    bounds = evaluation.bounded(request.max_episode_steps, request.timeout_s)
    num_envs = evaluation.max_envs if request.num_envs is None else request.num_envs
    num_envs = 1 if isinstance(watcher, Window) else num_envs  # each would open a window of its own
    scoring = _scoring(request, evaluation, actors, self_play)
    result = _play(request, actors, name, environment, trained, num_envs, bounds, scoring, watcher)
    picture = _write_film(request, watcher) if isinstance(watcher, Film) else None
    scored_by = f" ({result.scored_by})" if result.scored_by else ""
    numbers = f"return {result.mean_return:.2f} ± {result.std_return:.2f}"
    typer.echo(f"{len(result.returns)} episodes: {numbers}{scored_by}")
    for line in result.describe():
        typer.echo(line)
    bound = None if result.stopped_by is None else result.stopped_by.value
    if bound is not None:
        typer.echo(describe_bound(result.num_asked, result.num_ended, result.num_cut, bound))
    if isinstance(watcher, Film):
        typer.echo(f"picture: {picture}{f' (the first {watcher.num_frames} frames)' if watcher.is_cut else ''}")
    if as_json:
        values: dict[str, Any] = {"env": name, "mean_return": result.mean_return, "std_return": result.std_return}
        values = {key: None if value != value else value for key, value in values.items()}  # NaN is no JSON
        values |= {"episodes": len(result.returns), "returns": list(result.returns), "lengths": list(result.lengths)}
        counts = {"asked": result.num_asked, "ended": result.num_ended, "cut": result.num_cut}
        values |= {f"episodes_{what}": count for what, count in counts.items()} | {"stopped_by": bound}
        values |= {"scored_by": result.scored_by, "judged_by": result.scored_by}  # the latter for one release
        values |= (
            {"group_returns": result.group_returns, "agent_returns": result.agent_returns} if result.returns else {}
        )
        values["picture"] = None if picture is None else str(picture)
        values["opponents"] = {opponent: match.to_json() for opponent, match in result.matches.items()}
        typer.echo(json.dumps(values))


def _write_film(request: EvaluateRequest, film: Film) -> Path:
    path = (request.run if request.run.is_dir() else request.run.parent) / f"episode.{film.format.value}"
    write_whole(path, film.content())  # a link of that name is replaced, not followed
    return path


def _require_trusted(request: EvaluateRequest, name: str, environment: EnvSettings) -> None:
    from relayrl.engines.runs.trust import require_trusted, require_trusted_wrappers

    how = "add --env {} or --trust"
    require_trusted(name, request.run, named=(request.env,), trust=request.trust, how=how)
    is_given = "wrappers" in request.given
    names, how = environment.wrapper_names, "add --trust, or name the wrappers, as in --wrap {}"
    require_trusted_wrappers(names, request.run, named=names if is_given else (), trust=request.trust, how=how)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """By whose returns policies are scored, and against whom."""

    scored: ScoredAgents = EVERYBODY
    opponents: Mapping[str, Mapping[str, Actor]] | None = None
    self_play: SelfPlaySettings | None = None

    def among(self, groups: Mapping[str, AgentGroup]) -> ScoredAgents:
        """Whose returns they are, with the teams of these agents."""
        from relayrl.engines.self_play.game_teams import agents_of_teams

        return replace(self.scored, teams=agents_of_teams(self.self_play, groups))


def _scoring(
    request: EvaluateRequest,
    evaluation: EvaluationSettings,
    actors: Mapping[str, ExportedActor],
    self_play: SelfPlaySettings | None,
) -> _Scoring:
    """What was asked for, else as in the run."""
    from relayrl.engines.runs.named_opponents import named_opponents, opponents_of

    is_own = request.group is None and request.agent is None
    scored = ScoredAgents(evaluation.group, evaluation.agent) if is_own else ScoredAgents(request.group, request.agent)
    names = opponents_of(evaluation) if request.opponents is None else request.opponents
    return _Scoring(scored, None if names is None else named_opponents(names, actors), self_play)


def _load(
    path: Path,
) -> tuple[dict[str, ExportedActor], EnvSettings, EvaluationSettings, SelfPlaySettings | None]:
    """Policies by group, how the environment that they were trained on is run, how the run evaluated, and its self-play."""
    if path.suffix == ".onnx":
        actor = ExportedActor(path)
        around = actor.metadata.environment
        return {actor.metadata.group: actor}, _settings_around(path, around), EvaluationSettings(), None
    from relayrl.engines.runs.run_directory import RunDirectory

    if path.suffix == ".pt":
        raise ConfigError(
            f"{path} is TorchScript, which is not loaded here; evaluate its run or the .onnx file beside it"
        )
    directory = RunDirectory(path)
    settings = directory.settings()
    models = directory.models()
    if not models:
        raise ConfigError(f"{path} has no exported model yet; finish the run or write one with: relayrl export {path}")
    actors = [ExportedActor(model) for model in models]
    by_group = {actor.metadata.group: actor for actor in actors}
    return by_group, settings.environment_here, settings.evaluation, settings.self_play


def _settings_around(path: Path, text: str) -> EnvSettings:
    """Settings of what a model file says was put around its environment."""
    try:
        values = json.loads(text) if text else {}
        if not isinstance(values, dict) or not values.keys() <= set(AROUND):
            raise ValueError(f"{text!r:.80} are no settings of an environment")
        return parse_settings(EnvSettings, values)
    except (ValueError, RecursionError, ConfigError) as error:
        raise DecodeError(f"{path} has damaged RelayRL metadata: {error}") from error


def _play(
    request: EvaluateRequest,
    actors: dict[str, ExportedActor],
    name: str,
    environment: EnvSettings,
    trained: EnvSettings,
    num_envs: int | None,
    bounds: EvaluationBounds,
    scoring: _Scoring,
    watcher: Watcher | None,
) -> EvaluationResult:
    render = None if watcher is None else watcher.mode
    with explaining_registrations(request.run):
        env = make_evaluation_env(name, environment, request.episodes, num_envs=num_envs, render=render)
    try:
        check_fits(env, actors)
        now, before = ({**each.options, **each.around()} for each in (environment, trained))
        _require_same_spaces(env, actors, now, before)
        rng = np.random.default_rng(request.seed) if request.stochastic else None
        return evaluate(
            env,
            actors,
            episodes=request.episodes,
            seed=request.seed,
            rng=rng,
            film=watcher,
            bounds=bounds,
            scored=scoring.among(env.groups),
            opponents=scoring.opponents,
        )
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
                    f"the {what} space of {group!r} is {_line(space)}, the policy was trained with {_line(expected)}; "
                    f"{hint:.300}"
                )


def _line(space: Space) -> str:
    """A space in one line; of large ones the shape, for their bounds would fill it."""
    text = " ".join(str(space).split())
    shown = f"{type(space).__name__}{space.shape} of {space.dtype}"
    return text if len(text) <= _MAX_SPACE_TEXT or space.shape is None else shown


def _form(space: Space) -> list[Any]:
    """What a policy relies on: everything but the bounds, which differ between implementations of one environment."""
    counts = [getattr(leaf, "nvec", getattr(leaf, "n", None)) for _, leaf in space_leaves(space)]
    return [
        (path, type(leaf), leaf.shape, leaf.dtype, np.asarray(count).tolist())
        for (path, leaf), count in zip(space_leaves(space), counts, strict=True)
    ]
