"""`relayrl data inspect|convert|replay`: look at recorded trajectories, move them, walk through them.

    URL is arrow:DIR, parquet:DIR, csv:DIR, sqlite:FILE or postgresql://…

Not its job: recording (`relayrl train --record`) and learning from what was recorded (`--from`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relayrl.cli.debug_option import DebugFlag
from relayrl.config.passwords import without_password
from relayrl.errors import ConfigError

if TYPE_CHECKING:
    from relayrl.data.columns import Trajectory
    from relayrl.sinks.contract import ReadReport
    from relayrl.sinks.summary import GroupSummary

data_app = typer.Typer(
    help="Look at recorded trajectories, convert and replay them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Url = Annotated[str, typer.Argument(help="arrow:DIR, parquet:DIR, csv:DIR, sqlite:FILE or postgresql://…")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
AbandonedFlag = Annotated[
    bool, typer.Option("--abandoned", help="Include what runs took back when they were resumed after a kill.")
]
_TRAJECTORIES_PER_WRITE = 256


@data_app.command()
def inspect(
    url: Url,
    output: Annotated[Path | None, typer.Option("-o", help="Picture of returns to write (.png or .svg).")] = None,
    with_abandoned: AbandonedFlag = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Summarise what was recorded, with a picture of returns."""
    from relayrl.sinks.contract import open_source
    from relayrl.sinks.summary import summarise

    if output is not None and output.suffix not in (".png", ".svg"):
        raise ConfigError(f"-o {output} must end in .png or .svg")
    with open_source(url, with_abandoned=with_abandoned) as source:
        groups = summarise(source)
        report, shown_url = source.report, source.url
    num_steps, num_trajectories = (
        sum(getattr(group, name) for group in groups.values()) for name in ("num_steps", "num_trajectories")
    )
    typer.echo(f"{shown_url}: {num_trajectories:,} trajectories, {num_steps:,} steps")
    for name, group in groups.items():
        for line in _describe(name, group):
            typer.echo(line)
    _complain_about(report)
    if output is not None:
        _draw(groups, output)
        typer.echo(output)
    if as_json:
        document = {
            "url": shown_url,
            "num_trajectories": num_trajectories,
            "num_steps": num_steps,
            "num_duplicates": report.num_duplicates,
            "num_abandoned": report.num_abandoned,
            "torn": report.torn,
            "unfinished": report.unfinished,
            "num_unchecked": report.num_unchecked,
            "groups": {name: group.as_dict() for name, group in groups.items()},
        }
        typer.echo(json.dumps(document))


@data_app.command()
def convert(
    source_url: Annotated[str, typer.Argument(metavar="FROM", help="URL to read.")],
    sink_url: Annotated[str, typer.Argument(metavar="TO", help="URL to add to.")],
    with_abandoned: AbandonedFlag = False,
    as_json: JsonFlag = False,
    debug: DebugFlag = False,
) -> None:
    """Copy trajectories from one URL to another, without loss.

    Those that are there already are left alone.
    """
    from itertools import islice

    from relayrl.sinks.contract import open_sink, open_source

    if source_url == sink_url:
        raise ConfigError(f"{without_password(source_url)} is both where to read and where to write; give two URLs")
    num_trajectories = num_steps = 0
    with open_source(source_url, with_abandoned=with_abandoned) as source:
        trajectories = iter(source)
        with open_sink(sink_url) as sink:
            while some := list(islice(trajectories, _TRAJECTORIES_PER_WRITE)):
                sink.write(some)
                num_trajectories += len(some)
                num_steps += sum(map(len, some))
            sink.flush()
            shown_url = sink.url
        _complain_about(source.report)
    typer.echo(f"{num_trajectories:,} trajectories, {num_steps:,} steps are in {shown_url}")
    if as_json:
        typer.echo(json.dumps({"num_trajectories": num_trajectories, "num_steps": num_steps, "url": shown_url}))


@data_app.command()
def replay(
    url: Url,
    limit: Annotated[int | None, typer.Option(min=0, help="Stop after so many trajectories.")] = None,
    group: Annotated[str | None, typer.Option(help="Only this group.")] = None,
    with_abandoned: AbandonedFlag = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Print trajectories, a line each.

    In the order in which they were recorded.
    """
    from relayrl.sinks.contract import open_source

    num_shown = 0
    with open_source(url, with_abandoned=with_abandoned) as source:
        for trajectory in source:
            if limit is not None and num_shown >= limit:
                break
            if group is None or trajectory.group == group:
                fields = _line(trajectory)
                typer.echo(json.dumps(fields) if as_json else _readable(fields))
                num_shown += 1
        _complain_about(source.report)


def _describe(name: str, group: GroupSummary) -> list[str]:
    facts = group.as_dict()
    oldest, newest = facts["policy_versions"]
    lines = [
        f"group {name!r}: {group.num_trajectories:,} trajectories, {group.num_steps:,} steps, "
        f"{len(group.agents)} agents, policy versions {oldest} to {newest}",
        f"  observation {group.observation_space}",
        f"  action      {group.action_space}",
    ]
    if group.num_failed:
        lines.append(f"  {group.num_failed} trajectories ended because their environment failed")
    if facts["mean_return"] is not None:
        lines.append(
            f"  returns of {facts['num_whole_episodes']:,} whole episodes: mean {facts['mean_return']:.2f} ± "
            f"{facts['std_return']:.2f}, from {facts['min_return']:.2f} to {facts['max_return']:.2f}; "
            f"the longest has {facts['longest_episode']:,} steps"
        )
    return lines


def _complain_about(report: ReadReport) -> None:
    """What was left out goes to stderr, so that it is seen and does not stand in anybody's way."""
    if report.num_duplicates:
        typer.echo(f"{report.num_duplicates} copies of trajectories were left out", err=True)
    if report.num_abandoned:
        typer.echo(f"{report.num_abandoned} abandoned trajectories were left out; --abandoned includes them", err=True)
    for path, num_bytes in report.torn.items():
        typer.echo(f"{path}: the last {num_bytes} bytes were never flushed and were left out", err=True)
    for path in report.unfinished:
        typer.echo(f"{path}: was never finished and holds no flushed data", err=True)
    if report.num_unchecked:
        typer.echo(f"{report.num_unchecked} trajectories have no checksums: damage to them may go unnoticed", err=True)


def _line(trajectory: Trajectory) -> dict[str, Any]:
    import numpy as np

    with np.errstate(all="ignore"):
        total = trajectory.episode_return
    flags = [name for name in ("terminated", "truncated", "failed") if getattr(trajectory, name)]
    return {
        "trajectory_id": str(trajectory.trajectory_id),
        "group": trajectory.group,
        "env_id": str(trajectory.env_id),
        "agent_id": trajectory.agent_id,
        "episode": trajectory.episode,
        "first_step": trajectory.first_step,
        "num_steps": len(trajectory),
        "last_step": int(trajectory.steps[-1]),
        "return": total if np.isfinite(total) else None,
        "ended": flags,
        "policy_versions": [int(trajectory.policy_version.min()), int(trajectory.policy_version.max())],
    }


def _readable(fields: dict[str, Any]) -> str:
    first, last = fields["policy_versions"]
    versions = f"version {first}" if first == last else f"versions {first} to {last}"
    total = "no finite return" if fields["return"] is None else f"return {fields['return']:.2f}"
    return (
        f"{fields['trajectory_id']} {fields['group']}/{fields['agent_id']} episode {fields['episode']} "
        f"{_steps(fields)}, {total}, {versions}, "
        f"{' and '.join(fields['ended']) or 'goes on'}"
    )


def _steps(fields: dict[str, Any]) -> str:
    first, last, count = fields["first_step"], fields["last_step"], fields["num_steps"]
    shown = f"steps {first} to {last}"
    return shown if last - first + 1 == count else f"{shown}, {count} actions"


def _draw(groups: dict[str, GroupSummary], output: Path) -> None:
    """Every whole episode over its number, and beside it the mean return of each policy version."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (episodes, versions) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained", sharey=True)
    for name, group in groups.items():
        if group.returns:
            episodes.plot(range(len(group.returns)), group.returns, ".", markersize=3, label=name)
            versions.plot(*group.mean_return_by_version(), "o-", markersize=3, label=name)
    episodes.set(xlabel="whole episode, in order of recording", ylabel="return")
    versions.set(xlabel="policy version", title="mean return")
    for axes in (episodes, versions):
        axes.grid(alpha=0.3)
    if episodes.lines:
        episodes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    plt.close(figure)
