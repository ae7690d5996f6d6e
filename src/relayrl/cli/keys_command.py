"""`relayrl keys new|authorise|revoke|list`: the keys that servers and clients know each other by.

    relayrl keys new server                      # on the server: server.key stays, server.pub goes to the clients
    relayrl keys new alice                       # on a client: alice.key stays, alice.pub goes to the server
    relayrl keys authorise alice.pub             # on the server; works at once, as does `revoke`

Not its job: what keys are (`relayrl.transport.keys`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from relayrl.cli.debug_option import DebugFlag
from relayrl.errors import ConfigError

keys_app = typer.Typer(
    help="Make keys, and say which clients a server lets in.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_FOLDER = Path("~/.relayrl")
Folder = Annotated[Path, typer.Option("--dir", help="Folder of key files.")]
AuthorisedFile = Annotated[Path, typer.Option("--file", help="File of the keys that a server lets in.")]


@keys_app.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose keys, e.g. server or alice; names the files.")],
    folder: Folder = _FOLDER,
    debug: DebugFlag = False,
) -> None:
    """Make a pair of keys.

    NAME.key stays secret, NAME.pub is given away.
    """
    from relayrl.transport.keys import KeyPair

    path = KeyPair.new().save(folder, name)
    typer.echo(f"{path}  (secret: keep it here)")
    typer.echo(f"{path.with_suffix('.pub')}  (public: give it to the other side)")


@keys_app.command()
def authorise(
    public: Annotated[str, typer.Argument(help="A .pub file, or the public key itself.")],
    name: Annotated[str | None, typer.Option(help="Whose key it is; default: the name in the .pub file.")] = None,
    file: AuthorisedFile = _FOLDER / "authorised_keys",
    debug: DebugFlag = False,
) -> None:
    """Let the client with this key in, from now on."""
    from relayrl.transport import keys

    key, own_name = keys.public_key(public)
    chosen = name or own_name
    if not chosen:
        raise ConfigError("whose key is this? Add --name NAME")
    path = file.expanduser()
    keys.authorise(path, key, chosen)
    typer.echo(f"{path}: {chosen} is let in")


@keys_app.command()
def revoke(
    key_or_name: Annotated[str, typer.Argument(help="A name, for all its keys, or one public key.")],
    file: AuthorisedFile = _FOLDER / "authorised_keys",
    debug: DebugFlag = False,
) -> None:
    """Let a client in no longer.

    Servers cut its connections off within a second.
    """
    from relayrl.transport import keys

    path = file.expanduser()
    num_keys = keys.revoke(path, key_or_name)
    typer.echo(f"{path}: {num_keys} {'key' if num_keys == 1 else 'keys'} revoked")


@keys_app.command(name="list")
def list_(
    file: AuthorisedFile = _FOLDER / "authorised_keys",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Show the keys that are let in."""
    from relayrl.transport.keys import read_authorised

    keys = list(read_authorised(file.expanduser()))
    if as_json:
        typer.echo(json.dumps([{"key": key, "name": name} for key, name in keys]))
        return
    for key, name in keys:
        typer.echo(f"{key} {name}")
