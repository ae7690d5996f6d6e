"""Which writers a run's statistics go to."""

from __future__ import annotations

from relayrl.config.plugin_registry import PluginKind
from relayrl.engines.given_parts import load_part
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.training.statistics.run_statistics import Statistics
from relayrl.training.statistics.statistics_writers import (
    ProgressCsv,
    StatisticsWriter,
    TensorBoardEvents,
    WeightsAndBiases,
)


def make_statistics(settings: RunSettings, directory: RunDirectory, *, tensorboard: bool = True) -> Statistics:
    """`progress.csv` always, the others as the settings say; `tensorboard` False leaves that one out in any case."""
    chosen, path = settings.statistics, directory.path
    writers: list[StatisticsWriter] = [ProgressCsv(directory.progress)]
    if tensorboard and chosen.tensorboard:
        writers.append(TensorBoardEvents(path, settings.model_dump(mode="json")))
    if chosen.wandb_project is not None:
        writers.append(WeightsAndBiases(chosen.wandb_project, path, settings.model_dump(mode="json")))
    writers += [load_part(PluginKind.STATISTICS_WRITER, name)(path) for name in chosen.writers]
    return Statistics(writers)
