"""`relayrl.sweep(...)`: a sweep from Python, as `relayrl sweep` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relayrl.config.settings import parse_settings
from relayrl.config.settings_text import read_mapping
from relayrl.engines.process.interrupts import Interrupt
from relayrl.engines.sessions import print_note
from relayrl.errors import ConfigError
from relayrl.sweeps.results.sweep_table import SweepReport
from relayrl.sweeps.sweep_driver import SweepRequest, run_sweep
from relayrl.sweeps.sweep_settings import SweepSettings


def sweep(
    config: str | Path | Mapping[str, Any],
    *,
    sweep_dir: str | Path | None = None,
    concurrency: int | None = None,
    most_here: int | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    progress: bool = True,
    trust: bool = False,
) -> SweepReport:
    """Run a sweep, or go on with the one in `sweep_dir`; gives its trials and the best settings.

    `config` is a file, or what one would hold. Without `sweep_dir` it is `sweeps/NAME` of the file. Trials run in processes of
    their own, which import what the settings name: environments must be names that another process knows. `concurrency`
    replaces the file's; `most_here` bounds this process alone. Ctrl-C lets the runs save their state and raises
    `KeyboardInterrupt`. `resume` refuses to begin a sweep; `retry_failed` runs again what has failed.
    """
    if not isinstance(config, Mapping):
        sweep_dir = sweep_dir or Path("sweeps") / Path(config).stem
        config = read_mapping(Path(config))
    if sweep_dir is None:
        raise ConfigError("give sweep_dir, the folder of the sweep: its settings come from no file that has a name")
    given = dict(config) if concurrency is None else {**config, "concurrency": concurrency}
    request = SweepRequest(
        parse_settings(SweepSettings, given),
        Path(sweep_dir),
        trust=trust,
        resume=resume,
        retry_failed=retry_failed,
        most_here=most_here,
        note=print_note if progress else _nothing,
    )
    with Interrupt() as interrupt:
        return run_sweep(request, interrupt)


def _nothing(line: str) -> None:
    del line
