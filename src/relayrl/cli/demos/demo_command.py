"""`relayrl demo record`: whole episodes of a person at the keyboard, or of a trained policy, into a sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relayrl.cli.debug_option import DebugFlag
from relayrl.cli.environment_options import EnvAssignments, EnvOptions, Wraps, given_environment
from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from relayrl.engines.demos.demo_recording import RecordedDemos

demo_app = typer.Typer(
    help="Record demonstrations to imitate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


@demo_app.callback()
def _demo() -> None:
    """Record demonstrations to imitate."""


@demo_app.command()
def record(
    env: Annotated[str, typer.Argument(help="Environment, e.g. CartPole-v1; see `relayrl list envs`.")],
    to: Annotated[str, typer.Option(help="Sink to write to, e.g. arrow:DIR or sqlite:FILE.")] = "arrow:demos",
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Whole episodes to record.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environment.")] = 0,
    keys: Annotated[
        str | None, typer.Option(help="What keys do: left=0,right=1 or, of several numbers, left=0:-1,right=0:1.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="Text file with the keys of a step in each line, instead of the keyboard.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Run directory or .onnx file whose policies play instead of a person.")
    ] = None,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Draw a policy's actions.")] = False,
    fps: Annotated[float | None, typer.Option(min=0.1, help="Steps per second; default: the environment's.")] = None,
    options: EnvOptions = None,
    wraps: Wraps = None,
    assignments: EnvAssignments = None,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Play by keyboard and keep whole episodes.

    Escape ends the recording; the running episode is not kept. With --policy, a trained policy plays.
    """
    from relayrl.engines.demos.demo_recording import record_demonstrations

    given = given_environment(options, wraps, assignments)
    if policy is not None:
        if keys is not None or script is not None:
            raise ConfigError("--policy plays by itself; leave out --keys and --script")
        how = {"episodes": episodes, "seed": seed, "stochastic": stochastic}
        found = record_demonstrations(env, to, policy=policy, environment=given, **how)  # type: ignore[arg-type]
    else:
        found = _by_keys(env, given, to, keys, script, fps, episodes, seed)
    mean = f", return {sum(found.returns) / len(found.returns):.2f}" if found.returns else ""
    typer.echo(f"{found.url}: {len(found.returns)} episodes, {sum(found.lengths):,} steps{mean}")
    if as_json:
        typer.echo(json.dumps({"url": found.url, "returns": list(found.returns), "lengths": list(found.lengths)}))


def _by_keys(
    env: str,
    given: dict[str, object],
    to: str,
    keys: str | None,
    script: Path | None,
    fps: float | None,
    episodes: int,
    seed: int,
) -> RecordedDemos:
    from relayrl.engines.demos.demo_recording import demo_env, record_keys
    from relayrl.engines.demos.key_actor import ScriptedKeys

    if script is not None:
        made = demo_env(env, given)
        try:
            return record_keys(made, ScriptedKeys.from_file(script), to, key_map=keys, episodes=episodes, seed=seed)
        finally:
            made.close()
    from relayrl.engines.demos.key_map import KeyMap
    from relayrl.engines.demos.keyboard import PygameKeys
    from relayrl.envs.rendering import RenderMode
    from relayrl.runtime.pictures.film import require_drawn

    window = PygameKeys(f"relayrl demo record {env}", fps)
    made = demo_env(env, given, render=RenderMode.RGB_ARRAY)
    try:
        require_drawn(made, env, RenderMode.RGB_ARRAY)
        for group in made.groups.values():
            typer.echo("keys: " + ", ".join([*KeyMap.of(group.action_space, keys).describe(), "escape: stop"]))
        return record_keys(made, window, to, key_map=keys, episodes=episodes, seed=seed)
    finally:
        window.close()
        made.close()
