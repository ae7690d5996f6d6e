"""`relayrl models list|add|promote|rollback`: what a model store holds and deploys. A running server follows within a second.

Not its job: serving (`relayrl serve inference --store`), and judging canaries, which the server does by itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from relayrl.cli.debug_option import DebugFlag
from relayrl.errors import ConfigError

models_app = typer.Typer(
    help="Versions of models in a store: list, add, promote, roll back.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Store = Annotated[Path, typer.Argument(help="Directory of the store (relayrl serve inference --store DIR).")]
Group = Annotated[str | None, typer.Option(help="Group of agents, where the store has several.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
BY = "relayrl models"


@models_app.command(name="list")
def list_(
    store: Store,
    history: Annotated[bool, typer.Option("--history", help="Show every event instead, oldest first.")] = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Show versions, and which are deployed."""
    from relayrl.servers.inference.model_store import ModelStore

    opened = ModelStore(store)
    if history:
        for event in opened.history():
            typer.echo(json.dumps(event, ensure_ascii=False))
        return
    for name, group in opened.groups.items():
        for version in sorted(group.versions):
            marks = ["stable"] if version == group.stable else []
            marks += [f"canary, {group.share:.0%} of actors"] if version == group.canary else []
            marks += ["rolled back"] if version in group.withdrawn else []
            typer.echo(f"{name} {version}" + (f"  {'; '.join(marks)}" if marks else ""))
    if as_json:
        described = {
            name: {
                "versions": sorted(group.versions),
                "stable": group.stable,
                "canary": group.canary,
                "share": group.share,
                "rolled_back": sorted(group.withdrawn),
            }
            for name, group in opened.groups.items()
        }
        typer.echo(json.dumps(described))


@models_app.command()
def add(
    store: Store,
    model: Annotated[Path, typer.Argument(help=".onnx file.")],
    canary: Annotated[str | None, typer.Option(help="Let this share of actors try it, e.g. 10%.")] = None,
    debug: DebugFlag = False,
) -> None:
    """Put a model into the store.

    It is not deployed unless it is the first of its group or a canary.
    """
    from relayrl.servers.inference.model_keeper import CanaryPlan
    from relayrl.servers.inference.model_store import ModelStore

    share = None if canary is None else CanaryPlan.parse(f"new@{canary}").share
    try:
        content = model.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {model}: {error.strerror}") from error
    opened = ModelStore(store, create=True)
    name, version, _ = opened.add(content, str(model))
    if opened.groups[name].stable is None:
        opened.promote(name, version, by=BY)
    elif share is not None:
        opened.begin_canary(name, version, share, by=BY)
    typer.echo(f"{name} {version}")


@models_app.command()
def promote(
    store: Store,
    version: Annotated[int, typer.Argument(help="Version that all actors are to act with.")],
    group: Group = None,
    debug: DebugFlag = False,
) -> None:
    """Let all actors act with a version; a canary ends."""
    from relayrl.servers.inference.model_store import ModelStore

    opened = ModelStore(store)
    name, _ = opened.group(group)
    opened.promote(name, version, by=BY)
    typer.echo(f"{name} {version} is stable")


@models_app.command()
def rollback(store: Store, group: Group = None, debug: DebugFlag = False) -> None:
    """End the canary, or return to the version before.

    Without a canary, to the version that was stable before.
    """
    from relayrl.servers.inference.model_store import ModelStore

    opened = ModelStore(store)
    name, _ = opened.group(group)
    typer.echo(f"{name} {opened.roll_back(name, by=BY)} is stable")
