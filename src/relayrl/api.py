"""The Python interface to whole runs: `relayrl.train(...) -> Run`, and `relayrl.load_run(path)`.

    import relayrl

    run = relayrl.train("CartPole-v1", algo="ppo", steps=50_000)
    print(run.result.mean_return, run.evaluate(episodes=5).mean_return)
    action = run.policy.act(observation)

The same settings give the same parameters here and on the command line. Not its job: settings themselves (`engines`), and
driving the parts one by one (`training`, `runtime`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relayrl.config.plugin_registry import PluginKind, explaining_registrations, give_plugin
from relayrl.config.settings_text import read_mapping
from relayrl.engines.given_parts import address_of, give_parts, is_importable, require_parts_trusted, with_addresses
from relayrl.engines.process.interrupts import Interrupt, StartInterrupted
from relayrl.engines.process.progress_display import progress_display
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import RunResult
from relayrl.engines.sessions import TrainRequest, open_session, print_note, run_session
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import ConfigError, DecodeError, UnknownNameError
from relayrl.models.exports.exported import ExportFormat

if TYPE_CHECKING:
    from relayrl.engines.callbacks.callback import Callback
    from relayrl.engines.callbacks.live_run import LiveRun
    from relayrl.envs.environment_contract import VectorEnvironment
    from relayrl.models.exports.exported import ExportedActor
    from relayrl.runtime.evaluation import EvaluationResult

AnyPath = str | Path


def train(
    env: str | Callable[..., Any] | None = None,
    *,
    algo: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    num_envs: int | None = None,
    device: str | None = None,
    run_dir: AnyPath | None = None,
    config: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    init_from: AnyPath | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback | Callable[[LiveRun], Any]] = (),
    progress: bool = True,
    trust: bool = False,
) -> Run:
    """Train a policy; Ctrl-C saves the state and raises `KeyboardInterrupt`, `resume=True` with its `run_dir` goes on.
    Before the first update nothing is saved.

    `env` is a name, as `relayrl list envs` has them, or a function or class that makes an environment. `settings` are dotted
    paths, such as `{"params.gamma": 0.98}`; a last name alone is enough where it is unambiguous. Networks, heads, losses,
    reward signals, writers and schedules may be given there as objects. `device` is `"cpu"`, `"cuda"`, `"cuda:1"` or `"auto"`,
    the faster of both. `callbacks` are `Callback` objects, or functions that
    are called after every update. Without `run_dir` every call has a new directory; `overwrite` replaces the run that `run_dir`
    holds. `trust` allows `config`, or the run that is resumed, to name code of yours.
    """
    from relayrl.engines.callbacks.callback import callback_of

    called = [callback_of(each) for each in callbacks]
    if overwrite and (resume or run_dir is None):
        raise ConfigError("overwrite=True replaces the run of a run_dir; give one, and leave resume out")
    given = {"algo": algo, "trainer.max_steps": steps, "seed": seed, "environment.num_envs": num_envs, "device": device}
    request = TrainRequest(
        env=_name_of(env, Path(run_dir) if resume and run_dir is not None else None),
        run_dir=None if run_dir is None else Path(run_dir),
        config=None if config is None else Path(config),
        flags={path: value for path, value in given.items() if value is not None},
        assignments=list(with_addresses(settings or {}).items()),
        resume=resume,
        overwrite=overwrite,
        init_from=None if init_from is None else Path(init_from),
        trust=trust,
    )
    with Interrupt() as interrupt:
        session = open_session(request)
        chosen = session.settings
        try:
            with progress_display(chosen.env, chosen.algo, enabled=progress) as display:
                run_session(session, display.update, interrupt, print_note if progress else None, callbacks=called)
        except StartInterrupted:
            session.discard()
            raise
    run = Run(session.directory.path, env=chosen.env)
    run._named_wrappers = chosen.environment.wrapper_names
    return run


def load_run(
    path: AnyPath,
    *,
    env: str | Callable[..., Any] | None = None,
    parts: Sequence[Callable[..., Any]] = (),
    trust: bool = False,
) -> Run:
    """A run that was trained before. One whose environment is code of yours needs its name or the factory itself in `env`, or
    `trust`, to be evaluated or exported: a run directory from elsewhere may name any code. `parts` are the networks, heads and
    losses that were given to the run as objects, for `export`."""
    give_parts(tuple(parts))
    run = Run(Path(path), env=_name_of(env, Path(path)), trust=trust)
    run.directory.require()
    return run


class Run:
    """A run and its results; everything is read from its run directory."""

    def __init__(self, path: Path, *, env: str | None = None, trust: bool = False) -> None:
        self.path, self.directory = path, RunDirectory(path)
        self._named_env, self._trust = env, trust
        self._named_wrappers: list[str] = []  # that this program has just trained with

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @cached_property
    def settings(self) -> RunSettings:
        """Everything that decided the run."""
        return self.directory.settings()

    @property
    def result(self) -> RunResult:
        """How the run ended."""
        if not self.directory.result.exists():
            raise ConfigError(f"{self.path} has not ended yet; continue it with train(run_dir=..., resume=True)")
        try:
            return RunResult.from_json(self.directory.result.read_text())
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"{self.directory.result} is damaged: {error}; train on with resume=True") from error

    @property
    def history(self) -> dict[str, list[float]]:
        """The rows of statistics as columns of equal length, NaN where a row has no value; `pandas.DataFrame` takes it."""
        from relayrl.training.statistics.statistics_writers import read_progress

        return read_progress(self.directory.progress) if self.directory.progress.exists() else {}

    @cached_property
    def policies(self) -> dict[str, ExportedActor]:
        """The trained policies by group, as exported: they run without torch."""
        from relayrl.models.exports.exported import ExportedActor

        models = self.directory.models()
        if not models:
            raise ConfigError(f"{self.path} has no exported policy yet; let the run end, or call export()")
        actors = [ExportedActor(model) for model in models]
        return {actor.metadata.group: actor for actor in actors}

    @property
    def policy(self) -> ExportedActor:
        """The trained policy of a run that has one."""
        if len(self.policies) > 1:
            raise ConfigError(f"the run has policies {sorted(self.policies)}; use run.policies[name]")
        return next(iter(self.policies.values()))

    def evaluate(
        self,
        *,
        episodes: int = 20,
        seed: int = 1_000,
        stochastic: bool = False,
        max_episode_steps: int | None = None,
        timeout_s: float | None = None,
        group: str | None = None,
        agent: str | None = None,
        opponents: Sequence[AnyPath] | None = None,
        env: str | Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        render: str | None = None,
        tiles: int = 1,
        num_envs: int | None = None,
    ) -> EvaluationResult:
        """Play episodes with the trained policies, as `relayrl evaluate` does; bounds are the run's unless given.

        They are played in the run's environment, or in another one with the same spaces: `env`, a name or what makes one, and
        its `options`.

        Competing agents are scored by the return of a `group` or an `agent`, and against `opponents`: `"random"`, or the run
        directory or .onnx file of other policies. All of it is as in the run unless given.

        `render="gif"` or `"mp4"` films the first episode, of `tiles` environments side by side, into the run directory
        (`result.picture`); `"human"` shows it in a window.
        """
        from dataclasses import replace

        import numpy as np

        from relayrl.engines.runs.named_opponents import named_opponents, opponents_of
        from relayrl.engines.self_play.game_teams import agents_of_teams
        from relayrl.runtime.evaluation import evaluate, make_evaluation_env
        from relayrl.runtime.pictures.film import Film, Window, watcher_of
        from relayrl.runtime.scored_agents import ScoredAgents
        from relayrl.training.files.atomic_files import write_whole

        if env is None:
            self._require_trusted()
        own = self.settings.evaluation
        scored = ScoredAgents(own.group, own.agent) if group is None and agent is None else ScoredAgents(group, agent)
        names = opponents_of(own) if opponents is None else [str(name) for name in opponents]
        rivals = None if names is None else named_opponents(names, self.policies)
        bounds = self.settings.evaluation.bounded(max_episode_steps, timeout_s)
        watcher = None if render is None else watcher_of(render, tiles)
        most = 1 if isinstance(watcher, Window) else own.max_envs if num_envs is None else num_envs
        mode = None if watcher is None else watcher.mode
        environment = self.settings.environment_here
        if env is not None or options is not None:
            kept = {} if env is not None else environment.options
            environment = environment.model_copy(update={"options": {**kept, **(options or {})}})
        with explaining_registrations(self.path):
            chosen = self.settings.env if env is None else env
            played = make_evaluation_env(chosen, environment, episodes, num_envs=most, render=mode)
        try:
            rng = np.random.default_rng(seed) if stochastic else None
            _require_same_spaces(played, self.policies)
            scored = replace(scored, teams=agents_of_teams(self.settings.self_play, played.groups))
            result = evaluate(
                played,
                self.policies,
                episodes=episodes,
                seed=seed,
                rng=rng,
                bounds=bounds,
                film=watcher,
                scored=scored,
                opponents=rivals,
            )
        finally:
            played.close()
        if isinstance(watcher, Film):
            picture = self.path / f"episode.{watcher.format.value}"
            write_whole(picture, watcher.content())
            return replace(result, picture=picture)
        return result

    def export(self, path: AnyPath | None = None, *, file_format: str = "onnx", best: bool = False) -> list[Path]:
        """Write the policies as `onnx` or `torchscript`: the newest checkpoint's, or the best ones; gives the files."""
        formats = {one.value: one for one in ExportFormat}
        if file_format not in formats:
            raise UnknownNameError("format", file_format, formats)
        self._require_trusted()
        self._require_parts_trusted()
        from relayrl.engines.local.local_engine import LocalEngine

        not_recording = self.settings.here().model_copy(update={"record": None})
        with explaining_registrations(self.path):
            engine = LocalEngine(not_recording, self.directory, tensorboard=False)
        try:
            if best:
                engine.init_from(self.directory.best_checkpoint())
            elif not engine.resume():
                raise ConfigError(f"{self.path} has no checkpoint yet; let the run reach one, or finish it")
            return engine.export([formats[file_format]], None if path is None else Path(path))
        finally:
            engine.close()

    def _require_trusted(self) -> None:
        from relayrl.engines.runs.trust import require_trusted, require_trusted_wrappers

        env, how = self.settings.env, "add --env {} or --trust (env=… or trust=True in Python)"
        file, trust = self.directory.config, self._trust
        require_trusted(env, file, named=(self._named_env,), trust=trust, how=how)
        names, how = self.settings.environment.wrapper_names, "add --trust (trust=True in Python)"
        require_trusted_wrappers(names, file, named=self._named_wrappers, trust=trust, how=how)

    def _require_parts_trusted(self) -> None:
        require_parts_trusted(self.settings, self.directory.config, named=set(), trust=self._trust)


def _require_same_spaces(env: VectorEnvironment, policies: Mapping[str, ExportedActor]) -> None:
    for name, actor in policies.items():
        if name not in env.groups:
            raise ConfigError(f"the environment has groups {sorted(env.groups)}, the run policies {sorted(policies)}")
        group, known = env.groups[name], actor.metadata
        own = (group.observation_space, group.action_space)
        if own != (known.observation_space, known.action_space):
            raise ConfigError(
                f"the environment has observations {own[0]} and actions {own[1]}, and the policy was trained with "
                f"{known.observation_space} and {known.action_space}"
            )


def _name_of(env: str | Callable[..., Any] | None, run: Path | None = None) -> str | None:
    """The name of an environment in settings. A factory that no other process could import is known by its name in this one:
    by that which the `run` to go on with has for it, where there is one."""
    if env is None or isinstance(env, str):
        return env
    if not callable(env):
        raise ConfigError(
            f"{env!r:.100} is an environment; give what makes one, as each is made several times: a class, or lambda: …"
        )
    address = address_of(env)
    module, _, name = address.partition(":")
    if name.isidentifier() and getattr(importlib.import_module(module), name, None) is env:
        return address
    if run is not None and RunDirectory(run).config.exists():
        recorded = read_mapping(RunDirectory(run).config).get("env")
        if isinstance(recorded, str) and ":" in recorded and not is_importable(recorded):
            address = recorded
    return give_plugin(PluginKind.ENVIRONMENT, address, env)
