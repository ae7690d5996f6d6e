"""`relayrl check-env`: the public contract suite on any environment, as a list of facts that hold or do not."""

from __future__ import annotations

import json

import typer

from relayrl.config.settings_text import parse_assignment
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings


def run(env: str, num_envs: int, assignments: list[str], *, as_json: bool) -> int:
    """Check and print; 0 when everything holds, else 1."""
    from relayrl.testing.env_contract import check_environment

    options = dict(parse_assignment(assignment, "--set") for assignment in assignments)

    def make(count: int) -> VectorEnvironment:
        return make_vector(env, EnvSettings(num_envs=count, options=options), own_number=True)

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
