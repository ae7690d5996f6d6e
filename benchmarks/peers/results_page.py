"""The peers' part of RESULTS.md, made from the kept measurements alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from jobs import OWN_CHOICE, Job
from measurements import FOREIGN_CORES, Comparison, Measurement, comparisons
from targets import ANY_TORCH, METRIC_NAMES, TARGETS, Target
from work import WORKS, ThresholdWork

RESULTS = Path(__file__).parent.parent / "RESULTS.md"
BEGIN, END = "<!-- peers: written by benchmarks/peers/compare.py -->", "<!-- end of peers -->"
INTRODUCTION = """Environment steps per second of collection and learning together, each run in a process of its own, RelayRL
and peers in turn. The first rollout and update are not timed (W5: the random steps and 50 more; JAX: compiling). Medians, in
brackets the slowest and fastest run; ratios are taken within a round, and are medians of those. Each peer has the better of one
and two torch threads, RelayRL what it takes by itself. A figure is marked * where others kept more than {foreign} cores
busy during one of its runs. The return is the learning check: 20 greedy episodes, or training episodes where that is said.
`make bench-peers` measures all of it again; [peers/README.md](peers/README.md) says how."""


def write_section(jobs: Sequence[Job], measurements: Sequence[Measurement]) -> None:
    """Replace the peers' part of RESULTS.md, or add it at the end."""
    text = RESULTS.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page = section(jobs, measurements)
    RESULTS.write_text(before + page + after if BEGIN in text else f"{text.rstrip()}\n\n## Peers\n\n{page}\n")


def section(jobs: Sequence[Job], measurements: Sequence[Measurement]) -> str:
    """Targets first, then every work with everybody who does it."""
    machines = list(dict.fromkeys(m.machine for m in measurements))
    lines = [
        BEGIN,
        INTRODUCTION.format(foreign=FOREIGN_CORES),
        "",
        f"Measured on {'; '.join(machines) or 'nothing yet'}.",
        "",
    ]
    lines += ["![Environment steps per second of RelayRL and its peers](../docs/images/peers.png)", ""]
    lines += target_table(TARGETS, measurements)
    for work in dict.fromkeys(job.work for job in jobs):
        lines += ["", f"**{work}** {WORKS[work].title}", ""]
        lines += work_table([job for job in jobs if job.work == work], measurements)
    return "\n".join([*lines, END])


def target_table(targets: Sequence[Target], measurements: Sequence[Measurement]) -> list[str]:
    """One line per target and variant of ours."""
    lines = [
        "| work | ours | beside | ours | theirs | ratio | rounds | target | |",
        "|---|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for target in targets:
        found = comparisons(target, measurements)
        lines += [_target_line(comparison) for comparison in found] or [_unmeasured_line(target)]
    return lines


def _target_line(comparison: Comparison) -> str:
    target = comparison.target
    own = f"{target.work} {METRIC_NAMES[target.metric]}"
    peer = " ".join(filter(None, [comparison.peer, comparison.peer_variant]))
    if target.peer == ANY_TORCH:
        peer = f"{ANY_TORCH} of {comparison.num_rivals} measured: {peer}"
    if target.peer_work is not None:
        peer += f" ({target.peer_work})"
    ratios = comparison.ratios
    spread = f"{comparison.ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
    figures = [number(statistics.median(values)) for values in (comparison.ours, comparison.theirs)]
    verdict = "met" if comparison.is_met else f"**missed** by {1 - comparison.ratio / target.at_least:.1%}"
    cells = [own, comparison.variant, peer, *figures, spread, str(len(ratios)), f"≥ {target.at_least:g}", verdict]
    return f"| {' | '.join(cells)} |"


def _unmeasured_line(target: Target) -> str:
    own = f"{target.work} {METRIC_NAMES[target.metric]}"
    cells = [own, target.variant or "", target.peer, "", "", "", "0", f"≥ {target.at_least:g}", "not measured"]
    return f"| {' | '.join(cells)} |"


def work_table(jobs: Sequence[Job], measurements: Sequence[Measurement]) -> list[str]:
    """One line per job, whether it was measured, failed, or neither."""
    unit = "s to 475" if isinstance(WORKS[jobs[0].work], ThresholdWork) else "env steps/s"
    lines = [
        f"| who | variant | version | threads | {unit} | runs | MiB | return | |",
        "|---|---|---|--:|--:|--:|--:|--:|---|",
    ]
    return lines + [_job_line(job, [m for m in measurements if m.is_of(job)]) for job in jobs]


def _job_line(job: Job, runs: Sequence[Measurement]) -> str:
    metric = "seconds_to_threshold" if isinstance(WORKS[job.work], ThresholdWork) else "env_steps_per_s"
    whole = [run for run in runs if run.figure(metric) is not None]
    if not whole:
        reason = next((f"failed: {run.error}" for run in reversed(runs) if run.error), "not measured yet")
        if runs and not runs[-1].error:
            reason = f"did not reach it in {len(runs)} runs"
        return f"| {job.peer} | {job.variant} | | | | 0 | | | {_cell(reason)} |"
    threads = best_threads(whole, metric)
    best = [run for run in whole if run.threads == threads]
    values = [run.figures[metric] for run in best]
    shared = "*" if any((run.figure("foreign_cores") or 0.0) > FOREIGN_CORES for run in best) else ""
    figure = f"{number(statistics.median(values))} ({number(min(values))}–{number(max(values))}){shared}"
    memory = statistics.median(run.figures["process_peak_mib"] for run in best)
    cells = [job.peer, job.variant, best[-1].figures["version"], str(threads) if threads != OWN_CHOICE else "own"]
    return f"| {' | '.join([*cells, figure, str(len(best)), f'{memory:.0f}', _returns(best), _notes(runs, best)])} |"


def best_threads(runs: Iterable[Measurement], metric: str) -> int:
    """The thread setting with the best median."""
    by_threads: dict[int, list[float]] = {}
    for run in runs:
        by_threads.setdefault(run.threads, []).append(run.figures[metric])
    best = max if metric == "env_steps_per_s" else min
    return best(by_threads, key=lambda threads: statistics.median(by_threads[threads]))


def _returns(runs: Sequence[Measurement]) -> str:
    values = [run.figures["mean_return"] for run in runs if run.figures.get("mean_return") is not None]
    return f"{statistics.median(values):.1f}" if values else ""


def _notes(runs: Sequence[Measurement], best: Sequence[Measurement]) -> str:
    notes = []
    kind = best[-1].figures.get("return_kind", "greedy")
    if kind != "greedy":
        notes.append(f"return of {kind}")
    if "compile_seconds" in best[-1].figures:
        notes.append(f"compiles for {statistics.median(run.figures['compile_seconds'] for run in best):.1f} s")
    failures = [run for run in runs if run.error]
    if failures:
        notes.append(f"{len(failures)} more failed: {failures[-1].error}")
    return _cell("; ".join(notes))


def _cell(text: str) -> str:
    return text.replace("|", "¦").replace("\n", " ")


def number(value: float) -> str:
    """Three digits, with k for thousands from ten thousand on."""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k" if value >= 100_000 else f"{value / 1000:.1f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
