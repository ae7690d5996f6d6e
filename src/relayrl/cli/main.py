"""The `relayrl` command: parses, delegates, prints. Heavy imports happen inside the command that needs them.

Exit codes: 0 done, 1 failed, 2 bad usage or configuration (one line that says what to do), 130 interrupted (state saved).
Errors are one line; `--debug`, with any command, shows the traceback behind it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from relayrl import __version__
from relayrl.cli.data_command import data_app
from relayrl.cli.debug_option import DebugFlag, shows_traceback
from relayrl.cli.demos.demo_command import demo_app
from relayrl.cli.environment_options import (
    EnvAssignments,
    EnvOptions,
    EnvOptionsByOldName,
    Wraps,
    environment_flags,
    given_environment,
)
from relayrl.cli.keys_command import keys_app
from relayrl.cli.mlagents.learn_command import learn, with_env_args
from relayrl.cli.servers.actor_command import actor
from relayrl.cli.servers.models_command import models_app
from relayrl.cli.servers.serve_command import serve_app
from relayrl.cli.servers.serve_inference_command import inference
from relayrl.cli.sweeps.sweep_command import sweep_app
from relayrl.cli.terminal.named_command import with_named_command
from relayrl.config.passwords import without_password
from relayrl.errors import ConfigError, RelayRLError

app = typer.Typer(
    name="relayrl",
    help="Multi-actor, multi-agent deep reinforcement learning.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
app.add_typer(demo_app, name="demo")
app.add_typer(keys_app, name="keys")
app.add_typer(models_app, name="models")
app.add_typer(serve_app, name="serve")
app.add_typer(sweep_app, name="sweep")
serve_app.command()(inference)
app.command()(actor)
app.command()(learn)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
TrustFlag = Annotated[bool, typer.Option("--trust", help="Run the code that a file names as its environment.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False, debug: DebugFlag = False
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def train(
    env: Annotated[str | None, typer.Argument(help="Environment, e.g. CartPole-v1; see `relayrl list envs`.")] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm; see `relayrl list algos`. [default: ppo]")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Environment steps of the run. [default: the preset's, or 500000]")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness. [default: 0]")] = None,
    num_envs: Annotated[
        int | None, typer.Option(help="Environments stepped together. [default: the preset's, or 8]")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Worker processes for the environments; 0: this process. With ray: collectors. [default: 0]"),
    ] = None,
    env_options: EnvOptions = None,
    wraps: Wraps = None,
    device: Annotated[
        str | None, typer.Option(help="Where networks act and learn: auto, cpu, cuda or cuda:N. [default: cpu]")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Where environments are: local, ray, or a plugin's. [default: local]")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster of --engine ray: auto or HOST:PORT. [default: one for this run]")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run. [default: runs/ENV-ALGO-seedSEED-TIME]")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML, TOML or JSON file of settings. [default: none]")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="key=value, any number of times.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --run-dir.")] = False,
    init_from: Annotated[Path | None, typer.Option(help="Begin with the networks of this run or .ckpt file.")] = None,
    record: Annotated[str | None, typer.Option(help="Keep every trajectory, e.g. arrow:DIR or sqlite:FILE.")] = None,
    learn_from: Annotated[str | None, typer.Option("--from", help="Learn from recorded trajectories only.")] = None,
    profile_to: Annotated[
        Path | None, typer.Option("--profile", help="Write a flame graph (.svg or .json) and a torch trace.")
    ] = None,
    threaded: Annotated[bool | None, typer.Option("--threaded", help="Collect while learning.")] = None,
    trust: TrustFlag = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show the settings and stop.")] = False,
    as_json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no advice.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Train a policy."""
    from relayrl.engines.torch_preload import preload_torch

    if not print_config:
        preload_torch()
    from relayrl.cli import train_command
    from relayrl.engines.sessions import TrainRequest

    flags = {
        "algo": algo,
        "trainer.max_steps": steps,
        "seed": seed,
        "environment.num_envs": num_envs,
        "environment.workers": workers,
        "trainer.threaded": threaded,
        "device": device,
        "engine": engine,
        "cluster.address": address,
        "record": record,
        "learn_from": learn_from,
        **environment_flags(env_options, wraps),
    }
    given = {path: value for path, value in flags.items() if value is not None}
    request = TrainRequest(env, run_dir, config, given, assignments or [], resume, init_from, trust)
    from relayrl.observability.profiling import profile

    with profile(profile_to) if profile_to is not None else contextlib.nullcontext():
        code = train_command.run(request, print_config=print_config, as_json=as_json, quiet=quiet)
    raise typer.Exit(code)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Run directory or .onnx file.")],
    env: Annotated[str | None, typer.Option(help="Another environment than the policy was trained on.")] = None,
    options: EnvOptionsByOldName = None,
    wraps: Wraps = None,
    assignments: EnvAssignments = None,
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Episodes to play.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environments.")] = 1_000,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Draw actions instead of the likeliest.")] = False,
    render: Annotated[
        str | None, typer.Option(help="gif or mp4: write the first episode beside the model; human: show a window.")
    ] = None,
    tiles: Annotated[int, typer.Option(min=1, max=64, help="Environments side by side in the picture.")] = 1,
    num_envs: Annotated[
        int | None, typer.Option(min=1, help="Environments to play in at once; default: the run's setting.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Worker processes for the environments; default: the run's setting.")
    ] = None,
    trust: TrustFlag = False,
    max_episode_steps: Annotated[
        int | None, typer.Option(min=1, help="Cut an episode after so many steps; default: the run's setting.")
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option(help="End after so many seconds with what there is; default: the run's setting.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Score by this group's return; default: the run's setting.")] = None,
    agent: Annotated[str | None, typer.Option(help="Score by this agent's return; default: the run's setting.")] = None,
    opponents: Annotated[
        list[str] | None,
        typer.Option(
            "--opponent",
            help="random, or a run directory or .onnx file whose policies play the others; the first of several decides.",
        ),
    ] = None,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Play episodes with a trained policy."""
    from relayrl.cli import evaluate_command

    request = evaluate_command.EvaluateRequest(
        run,
        env,
        given_environment(options, wraps, assignments),
        episodes,
        seed,
        stochastic=stochastic,
        render=render,
        trust=trust,
        max_episode_steps=max_episode_steps,
        timeout_s=timeout_s,
        group=group,
        agent=agent,
        opponents=opponents,
        tiles=tiles,
        num_envs=num_envs,
        workers=workers,
    )
    evaluate_command.run(request, as_json=as_json)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    file_format: Annotated[str, typer.Option("--format", help="onnx or torchscript.")] = "onnx",
    output: Annotated[Path | None, typer.Option("-o", help="File to write; default: inside the run directory.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The best policies of evaluations, not the newest.")] = False,
    env: Annotated[str | None, typer.Option(help="The run's environment, where it is code of yours.")] = None,
    trust: TrustFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Write policies as ONNX or TorchScript.

    The newest checkpoint's, or the best ones.
    """
    from relayrl.cli import export_command

    for path in export_command.run(run, file_format, output, best=best, env=env, trust=trust):
        typer.echo(path)


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; seeds of one setting become one curve.")],
    output: Annotated[Path, typer.Option("-o", help="Picture to write (.png or .svg).")] = Path("returns.png"),
    metric: Annotated[str, typer.Option(help="Column of progress.csv.")] = "episode/return_mean",
    x: Annotated[str, typer.Option(help="steps or seconds.")] = "steps",
    by: Annotated[str | None, typer.Option(help="group or agent: a curve for each.")] = None,
    debug: DebugFlag = False,
) -> None:
    """Draw learning curves."""
    from relayrl.cli import plot_command
    from relayrl.config.enum_members import member_of

    split = None if by is None else member_of(plot_command.Split, by, "kind of curves")
    typer.echo(plot_command.run(runs, output, metric, member_of(plot_command.XAxis, x, "x axis"), split))


@app.command()
def watch(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run directories, or folders of them; default: runs.")
    ] = None,
    metric: Annotated[str, typer.Option(help="Column of progress.csv to draw.")] = "episode/return_mean",
    once: Annotated[bool, typer.Option("--once", help="Print one frame and stop.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.05, help="Seconds between frames.")] = 1.0,
    metrics: Annotated[bool, typer.Option("--metrics", help="List the metrics that the runs have.")] = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Watch runs in the terminal: a table and curves.

    Running, finished, stopped and damaged ones.
    """
    from relayrl.cli.terminal import watch_command

    paths = runs or [Path("runs")]
    watch_command.run(paths, metric, once=once, interval_s=interval_s, as_json=as_json, lists_metrics=metrics)


@app.command()
def ladder(
    run: Annotated[Path, typer.Argument(help="Run directory of a run with self_play.")],
    output: Annotated[Path | None, typer.Option("-o", help="Draw the ladder into this .png or .svg as well.")] = None,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Show the snapshots of a self-play run by their ratings.

    Ratings are those of the newest checkpoint, with their standard errors.
    """
    from relayrl.cli.terminal import ladder_command

    for line in ladder_command.run(run, output, as_json=as_json):
        typer.echo(line)


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="envs, algos, presets, plugins or schema.")],
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """List environments, algorithms, presets, plugins.

    `schema` prints the JSON Schema of settings files.
    """
    from relayrl.cli import list_command

    if as_json:
        typer.echo(list_command.as_json(what))
        return
    for line in list_command.lines(what):
        typer.echo(line)


@app.command()
def check_env(
    env: Annotated[str, typer.Argument(help="Any environment, your own as package.module:factory.")],
    num_envs: Annotated[int, typer.Option(min=1, max=10_000, help="Environments to check with.")] = 3,
    steps: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Steps of each recording; episodes should end in them.")
    ] = 60,
    timeout_s: Annotated[float, typer.Option(min=1e-3, help="End after so many seconds; the rest is not run.")] = 300.0,
    options: EnvOptions = None,
    wraps: Wraps = None,
    assignments: EnvAssignments = None,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Check whether RelayRL can train on an environment.

    Runs the public contract suite, and prints the command to train with.
    """
    from relayrl.cli import check_env_command

    # A key without `environment.` has always been an option of the environment itself here.
    own = [each for each in assignments or [] if not each.startswith("environment.")]
    settings = [each for each in assignments or [] if each not in own]
    options = [*own, *(options or [])]
    given = given_environment(options, wraps, settings)
    words = [("--env-option", options), ("--wrap", wraps or []), ("--set", settings)]
    as_typed = [word for flag, values in words for value in values for word in (flag, value)]
    code = check_env_command.run(env, num_envs, given, as_typed, num_steps=steps, timeout_s=timeout_s, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="One benchmark; default: all.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="One row of gpu, such as cartpole_large; repeatable.")] = None,
    limit_s: Annotated[
        float | None, typer.Option(min=1, help="Seconds that a process of gpu may take. [default: 120]")
    ] = None,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Measure RelayRL beside floors and peers."""
    from relayrl.cli import bench_command

    raise typer.Exit(bench_command.run(name, as_json=as_json, only=only or (), limit_s=limit_s))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: turns errors into one line and an exit code; the parser does so for its own."""
    shows_traceback.set(False)
    try:
        given = with_env_args(list(sys.argv[1:] if arguments is None else arguments))
        with_named_command(app, given)(given, prog_name="relayrl")
    except KeyboardInterrupt:
        print("relayrl: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:  # noqa: BLE001 - whatever it is, a user sees a line, and a traceback where wanted
        if shows_traceback.get():
            print(without_password(traceback.format_exc()), end="", file=sys.stderr)
        sys.exit(_complain(error))


def _complain(error: Exception) -> int:
    """Say what went wrong, without a password that a URL may hold; gives the exit code."""
    if isinstance(error, RelayRLError):
        message = str(error)
    elif isinstance(error, OSError) and error.strerror is not None:
        message = error.strerror if error.filename is None else f"{error.filename!s:.200}: {error.strerror}"
    elif isinstance(error, MemoryError):
        message = f"out of memory {error}".strip() + "; use fewer or smaller environments, rollouts, batches or layers"
    else:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        message = f"internal error: {what}; run again with --debug for the traceback"
    print(f"relayrl: {without_password(message)}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1


if __name__ == "__main__":
    main()
