"""Which writers a run's statistics go to."""

from __future__ import annotations

from pathlib import Path

from relayrl.engines.plugins import PluginKind, load_plugin
from relayrl.engines.run_settings import RunSettings
from relayrl.training.statistics import Statistics
from relayrl.training.statistics_writers import ProgressCsv, StatisticsWriter, TensorBoardEvents, WeightsAndBiases


def make_statistics(settings: RunSettings, path: Path, *, tensorboard: bool = True) -> Statistics:
    """`progress.csv` always, the others as the settings say; `tensorboard` False leaves that one out in any case."""
    chosen = settings.statistics
    writers: list[StatisticsWriter] = [ProgressCsv(path / "progress.csv")]
    if tensorboard and chosen.tensorboard:
        writers.append(TensorBoardEvents(path))
    if chosen.wandb_project is not None:
        writers.append(WeightsAndBiases(chosen.wandb_project, path, settings.model_dump(mode="json")))
    writers += [load_plugin(PluginKind.STATISTICS_WRITER, name)(path) for name in chosen.writers]
    return Statistics(writers)
