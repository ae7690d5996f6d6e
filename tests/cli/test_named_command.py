"""Only the named command is built, and nothing that a user sees depends on it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from relayrl.cli.main import app
from relayrl.cli.terminal.named_command import with_named_command

NAMES = [name for name, _ in sorted(typer.main.get_command(app).commands.items())]  # type: ignore[attr-defined]


def output_of(some_app: typer.Typer, arguments: list[str]) -> tuple[int, str]:
    result = CliRunner().invoke(some_app, arguments, prog_name="relayrl")
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        [],
        ["trian"],
        ["serve", "inference", "--help"],
        ["data", "nothing"],
        *([name, "-h"] for name in NAMES),
    ],
    ids=" ".join,
)
def test_prints_what_the_whole_command_prints(arguments: list[str]) -> None:
    assert output_of(with_named_command(app, arguments), arguments) == output_of(app, arguments)


def test_builds_options_of_the_named_command_only() -> None:
    commands = typer.main.get_command(with_named_command(app, ["--debug", "train", "CartPole-v1"])).commands  # type: ignore[attr-defined]

    assert {name for name, command in commands.items() if command.params} == {"train"}


def test_a_shell_that_completes_gets_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_RELAYRL_COMPLETE", "complete_bash")

    assert with_named_command(app, []) is app


def test_leaves_the_app_as_it_is() -> None:
    before = [info.callback for info in app.registered_commands]
    with_named_command(app, ["train"])

    assert [info.callback for info in app.registered_commands] == before
