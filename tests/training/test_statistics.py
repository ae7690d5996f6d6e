"""Rows of statistics: means, groups, what a resume takes back, and what writers make of them."""

import io
import json
import math
import sys

import pytest

from relayrl.envs.environment_contract import Combination, Recorded
from relayrl.errors import MissingExtraError
from relayrl.training.statistics.event_records import event_record
from relayrl.training.statistics.run_statistics import RECENT_EPISODES, Statistics
from relayrl.training.statistics.statistics_writers import (
    ProgressCsv,
    StatisticsWriter,
    TensorBoardEvents,
    WeightsAndBiases,
    read_progress,
)


class Recorder(StatisticsWriter):
    def __init__(self) -> None:
        self.rows = []

    def write(self, num_env_steps, row):
        self.rows.append((num_env_steps, row))


def test_recorded_numbers_are_combined_as_each_asks_and_survive_a_resume():
    first, second = (Statistics([Recorder()]) for _ in range(2))
    recorded = [
        Recorded("a", 1.0),
        Recorded("a", 4.0),
        Recorded("b", 1.0, Combination.MOST_RECENT),
        Recorded("c", 1.0, Combination.SUM),
        Recorded("c", 2.0, Combination.SUM),
        Recorded("d", -1.0, Combination.HISTOGRAM),
    ]
    first.add_recorded(recorded)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for statistics in (first, second):
        statistics.add_recorded(
            [Recorded("b", 3.0, Combination.MOST_RECENT), Recorded("d", 2.0, Combination.HISTOGRAM)]
        )
        row = statistics.summarize(10, {})
        found = {name: number for name, number in row.items() if name.startswith("environment/")}
        assert found == {
            "environment/a": 2.5,
            "environment/b": 3.0,
            "environment/c": 3.0,
            "environment/d": 0.5,
            "environment/d_min": -1.0,
            "environment/d_max": 2.0,
        }
        assert not any(name.startswith("environment/") for name in statistics.summarize(20, {}))


def test_a_row_is_the_mean_since_the_last_one():
    recorder = Recorder()
    statistics = Statistics([recorder])
    statistics.add({"policy/loss": 1.0})
    statistics.add({"policy/loss": 3.0, "value/loss": 5.0})
    statistics.add_episodes([10.0, 20.0], [4, 6])
    statistics.summarize(100, {"time/seconds": 2.0})
    assert recorder.rows[0] == (
        100,
        {
            "time/seconds": 2.0,
            "episode/return_mean": 15.0,
            "episode/return_min": 10.0,
            "episode/return_max": 20.0,
            "episode/length_mean": 5.0,
            "episode/count": 2.0,
            "policy/loss": 2.0,
            "value/loss": 5.0,
        },
    )
    assert "policy/loss" not in statistics.summarize(200, {})


def test_returns_are_of_the_latest_episodes_and_nan_before_the_first():
    statistics = Statistics([])
    assert math.isnan(statistics.mean_return)
    statistics.add_episodes([0.0] * 50 + [1.0] * RECENT_EPISODES, [1] * 150)
    assert statistics.mean_return == 1.0
    assert statistics.num_episodes == 150


def test_groups_have_returns_of_their_own_where_there_are_several():
    statistics = Statistics([])
    statistics.add_episodes([1.0], [5], {"good": [3.0], "bad": [-1.0]})
    row = statistics.summarize(10, {})
    assert (row["good/episode/return_mean"], row["bad/episode/return_mean"]) == (3.0, -1.0)
    alone = Statistics([])
    alone.add_episodes([1.0], [5], {"agent": [1.0]})
    assert "agent/episode/return_mean" not in alone.summarize(10, {})


def test_a_state_carries_what_the_next_row_is_made_of():
    first, second = Statistics([]), Statistics([])
    first.add({"policy/loss": 1.0})
    first.add_episodes([1.0, 2.0], [3, 4], {"a": [1.0, 1.0], "b": [1.0, 3.0]})
    second.load_state_dict(first.state_dict())
    for one in (first, second):
        one.add({"policy/loss": 2.0})
    assert first.summarize(9, {}) == second.summarize(9, {})


def test_a_column_that_appears_late_is_empty_above(tmp_path):
    csv = ProgressCsv(tmp_path / "p.csv")
    csv.write(1, {"a": 0.5})
    csv.write(2, {"a": 0.25, "b": 3.0})
    csv.write(3, {"a": 0.125})
    assert (tmp_path / "p.csv").read_text() == "num_env_steps,a,b\n1,0.5,\n2,0.25,3.0\n3,0.125,\n"
    table = read_progress(tmp_path / "p.csv")
    assert table["num_env_steps"] == [1, 2, 3]
    assert table["b"][1] == 3.0
    assert math.isnan(table["b"][0])


def test_rewinding_takes_back_rows_and_a_line_cut_short(tmp_path):
    path = tmp_path / "p.csv"
    csv = ProgressCsv(path)
    for step in (10, 20, 30):
        csv.write(step, {"a": 1.0})
    with path.open("a") as file:
        file.write("4")  # killed while writing step 40
    again = ProgressCsv(path)
    again.rewind(20)
    again.write(30, {"a": 2.0})
    assert path.read_text() == "num_env_steps,a\n10,1.0\n20,1.0\n30,2.0\n"


def test_tensorboard_shows_the_rows_and_forgets_those_of_a_killed_session(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoardEvents(tmp_path)
    for step in (10, 20, 30):
        first.write(step, {"a": float(step)})
    first.close()
    second = TensorBoardEvents(tmp_path)
    second.rewind(20)
    second.write(30, {"a": -1.0})
    second.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("a")] == [(10, 10.0), (20, 20.0), (30, -1.0)]


def test_numbers_that_float32_does_not_hold_become_infinities(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    row = {"a/b": 1.5, "ü": -1e-30, "nan": math.nan, "large": 1e30, "too large": -1e300}
    writer = TensorBoardEvents(tmp_path)
    writer.write(10_000_000_000, row)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    read = {name: events.Scalars(name)[0] for name in row}
    assert {event.step for event in read.values()} == {10_000_000_000}
    assert (read["a/b"].value, read["too large"].value) == (1.5, -math.inf)
    assert (read["ü"].value, read["large"].value) == (pytest.approx(-1e-30), pytest.approx(1e30))
    assert math.isnan(read["nan"].value)


FAKE_WANDB = """
calls = []
class Run:
    def log(self, row, step): calls.append((step, row))
    def finish(self): calls.append("finished")
def init(**options):
    calls.append(options["project"])
    return Run()
"""


def test_weights_and_biases_gets_the_rows_where_it_is_installed(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text(FAKE_WANDB)
    monkeypatch.syspath_prepend(str(tmp_path))
    writer = WeightsAndBiases("project", tmp_path, {})
    writer.write(5, {"a": 1.0})
    writer.close()
    assert sys.modules.pop("wandb").calls == ["project", (5, {"a": 1.0}), "finished"]


def test_without_it_the_line_to_install_is_told(tmp_path):
    with pytest.raises(MissingExtraError, match="pip install"):
        WeightsAndBiases("project", tmp_path, {})


def test_tensorboard_gets_the_settings_as_text_and_as_hyper_parameters(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    settings = {"env": "X", "params": {"gamma": 0.9, "clip": True}, "record": None}
    writer = TensorBoardEvents(tmp_path, settings)
    writer.write(8, {"episode/return_mean": 1.0})
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    metadata = events.SummaryMetadata("_hparams_/session_start_info")
    start = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
    assert start.hparams["params.gamma"].number_value == 0.9
    assert start.hparams["params.clip"].bool_value is True
    assert (start.hparams["env"].string_value, start.hparams["record"].string_value) == ("X", "")
    about = events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    experiment = HParamsPluginData.FromString(about).experiment
    assert [info.type for info in experiment.hparam_infos] == [1, 3, 2, 1]  # string, float64, bool, string
    (text,) = events.Tensors("settings")
    assert b"| params.gamma | `0.9` |" in text.tensor_proto.string_val[0]
    assert [event.value for event in events.Scalars("episode/return_mean")] == [1.0]


@pytest.mark.parametrize("length", [0, 1, 255, 4096])
def test_records_of_events_are_those_of_tensorboards_own_writer(length):
    from tensorboard.summary.writer.record_writer import RecordWriter

    event = bytes(i * 31 % 256 for i in range(length))
    file = io.BytesIO()
    RecordWriter(file).write(event)
    assert event_record(event) == file.getvalue()
