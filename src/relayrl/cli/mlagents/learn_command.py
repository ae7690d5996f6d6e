"""`relayrl learn`: the command line of `mlagents-learn`, on any environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayrl.cli.debug_option import DebugFlag, shows_traceback
from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from relayrl.engines.settings.mlagents_learn import LearnPlan

ENV_ARGS = "--env-args"
_EPISODES = 20


def with_env_args(arguments: list[str]) -> list[str]:
    """Everything behind `--env-args` as one argument: there, it is the executable's."""
    if "learn" not in arguments[:2] or ENV_ARGS not in arguments:
        return arguments
    cut = arguments.index(ENV_ARGS)
    return [*arguments[: cut + 1], json.dumps(arguments[cut + 1 :])]


def learn(
    config: Annotated[Path | None, typer.Argument(help="Settings file of ML-Agents; default: its defaults.")] = None,
    env: Annotated[str | None, typer.Option(help="Environment, or the path of a Unity executable.")] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run, a folder of --results-dir. [default: ppo]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run of that id.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run of that id.")] = False,
    initialize_from: Annotated[
        str | None, typer.Option(metavar="RUN_ID", help="Begin with this run's networks.")
    ] = None,
    inference: Annotated[
        bool, typer.Option("--inference", help="Play with the run's policies, without training.")
    ] = False,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="With --inference: the likeliest actions.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness. [default: 0]")] = None,
    num_envs: Annotated[int | None, typer.Option(help="Environments, or Unity executables.")] = None,
    results_dir: Annotated[str | None, typer.Option(help="Folder of runs. [default: results]")] = None,
    torch_device: Annotated[
        str | None, typer.Option(help="Where networks act and learn: cpu, cuda, cuda:N or auto.")
    ] = None,
    timeout_wait: Annotated[int | None, typer.Option(help="Seconds that an environment has to start.")] = None,
    max_lifetime_restarts: Annotated[int | None, typer.Option(help="0: a crash ends the run.")] = None,
    restarts_rate_limit_n: Annotated[int | None, typer.Option(help="Restarts allowed in a period.")] = None,
    restarts_rate_limit_period_s: Annotated[int | None, typer.Option(help="That period, in seconds.")] = None,
    num_areas: Annotated[int | None, typer.Option(help="Unity: copies of the training area.")] = None,
    base_port: Annotated[int | None, typer.Option(help="Unity: the first port.")] = None,
    width: Annotated[int | None, typer.Option(help="Unity: of its window.")] = None,
    height: Annotated[int | None, typer.Option(help="Unity: of its window.")] = None,
    quality_level: Annotated[int | None, typer.Option(help="Unity: of its graphics.")] = None,
    time_scale: Annotated[float | None, typer.Option(help="Unity: how much faster than real time.")] = None,
    target_frame_rate: Annotated[int | None, typer.Option(help="Unity: frames per second.")] = None,
    capture_frame_rate: Annotated[int | None, typer.Option(help="Unity: frames per second of its time.")] = None,
    no_graphics: Annotated[bool, typer.Option("--no-graphics", help="Unity: without a window.")] = False,
    no_graphics_monitor: Annotated[bool, typer.Option("--no-graphics-monitor", hidden=True)] = False,
    load: Annotated[bool, typer.Option("--load", hidden=True)] = False,
    train: Annotated[bool, typer.Option("--train", hidden=True)] = False,
    torch: Annotated[bool, typer.Option("--torch", hidden=True)] = False,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="key=value of RelayRL's settings.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that the file names as its environment.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no advice.")] = False,
    env_args: Annotated[str | None, typer.Option(ENV_ARGS, help="Unity: all that follows is the executable's.")] = None,
    debug: DebugFlag = False,
) -> None:
    """Train as mlagents-learn does."""
    from relayrl.engines.settings.mlagents_learn import plan_of
    from relayrl.engines.torch_preload import preload_torch

    del train, torch  # there, names of what is always so
    given = {
        "env_path": env,
        "run_id": run_id,
        "resume": resume or load or None,
        "force": force or None,
        "initialize_from": initialize_from,
        "inference": inference or None,
        "deterministic": deterministic or None,
        "seed": seed,
        "num_envs": num_envs,
        "results_dir": results_dir,
        "device": torch_device,
        "timeout_wait": timeout_wait,
        "max_lifetime_restarts": max_lifetime_restarts,
        "restarts_rate_limit_n": restarts_rate_limit_n,
        "restarts_rate_limit_period_s": restarts_rate_limit_period_s,
        "num_areas": num_areas,
        "base_port": base_port,
        "width": width,
        "height": height,
        "quality_level": quality_level,
        "time_scale": time_scale,
        "target_frame_rate": target_frame_rate,
        "capture_frame_rate": capture_frame_rate,
        "no_graphics": no_graphics or None,
        "no_graphics_monitor": no_graphics_monitor or None,
        "env_args": None if env_args is None else json.loads(env_args),
        "debug": debug or None,
    }
    plan = plan_of(config, {key: value for key, value in given.items() if value is not None})
    shows_traceback.set(plan.debug)
    if not plan.is_named and config is not None:
        from relayrl.engines.runs.trust import require_trusted

        require_trusted(plan.env, config, named=(), trust=trust, how="name it, as in --env {}, or add --trust")
    if plan.inference:
        _play(plan, seed, as_json=as_json)
        return
    preload_torch()
    raise typer.Exit(_train(plan, config, assignments or [], trust=trust, as_json=as_json, quiet=quiet))


def _train(
    plan: LearnPlan, config: Path | None, assignments: list[str], *, trust: bool, as_json: bool, quiet: bool
) -> int:
    from relayrl.cli import train_command
    from relayrl.engines.runs.run_directory import RunDirectory
    from relayrl.engines.sessions import TrainRequest

    is_there = RunDirectory(plan.run_dir).config.exists()
    if is_there and not (plan.resume or plan.force):
        raise ConfigError(f"{plan.run_dir} already holds a run; add --resume or --force, or choose another --run-id")
    if plan.resume and not is_there:
        raise ConfigError(f"{plan.run_dir} holds no run to resume; leave out --resume, or choose its --run-id")
    # A run that is resumed without a file has its own settings, which are no file of ML-Agents.
    overlay = {} if plan.resume and config is None else plan.overlay
    request = TrainRequest(
        plan.env,
        plan.run_dir,
        config,
        assignments=assignments,
        resume=plan.resume,
        init_from=plan.init_from,
        trust=trust,
        overwrite=plan.force and is_there,
        overlay=overlay,
    )
    return train_command.run(request, print_config=False, as_json=as_json, quiet=quiet)


def _play(plan: LearnPlan, seed: int | None, *, as_json: bool) -> None:
    from relayrl.cli import evaluate_command

    run = plan.run_dir if plan.init_from is None else plan.init_from
    request = evaluate_command.EvaluateRequest(
        run,
        plan.env,
        {},
        _EPISODES,
        0 if seed is None else seed,
        stochastic=not plan.deterministic,
        render=None,
    )
    evaluate_command.run(request, as_json=as_json)
