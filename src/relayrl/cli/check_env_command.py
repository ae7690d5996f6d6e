"""`relayrl check-env`: the public contract suite on any environment, as a list of facts that hold or do not."""

from __future__ import annotations

import json
from typing import Any

import typer

from relayrl.config.settings import parse_settings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings


def run(env: str, num_envs: int, given: dict[str, Any], *, as_json: bool) -> int:
    """Check and print; 0 when everything holds, else 1. `given` are values of `EnvSettings`."""
    from relayrl.testing.env_contract import check_environment

    def make(count: int) -> VectorEnvironment:
        return make_vector(env, parse_settings(EnvSettings, {**given, "num_envs": count}), own_number=True)

    first = make(num_envs)
    number = first.num_envs
    first.close()
    if number != num_envs:
        typer.echo(f"{env} is a vector environment of {number} environments: checked with these")
    report = check_environment(make, num_envs=number)
    for check in report.checks:
        typer.echo(
            f"{'ok  ' if check.passed else 'FAIL'} {check.name}{'' if check.passed else ': ' + check.explanation}"
        )
    failed = [check.name for check in report.checks if not check.passed]
    typer.echo(f"{env}: {len(report.checks) - len(failed)} of {len(report.checks)} checks hold")
    if as_json:
        typer.echo(json.dumps({"env": env, "checks": len(report.checks), "failed": failed}))
    return 1 if failed else 0
