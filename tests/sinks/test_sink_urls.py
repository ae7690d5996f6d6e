"""URLs that open nothing say what to write instead; drivers that are missing say what to install."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_steps import plain_trajectory

from relayrl.errors import ConfigError, SinkWriteError, UnknownNameError
from relayrl.sinks.contract import open_sink, open_source
from relayrl.sinks.fan_out import FanOutSink
from relayrl.sinks.memory import forget
from relayrl.sinks.sink_settings import SinkSettings


@pytest.mark.parametrize("open_it", [open_sink, open_source])
def test_an_unknown_kind_offers_the_nearest(open_it: Callable[[str], object]) -> None:
    with pytest.raises(UnknownNameError, match="unknown kind of sink 'parket'; did you mean 'parquet'"):
        open_it("parket:somewhere")


@pytest.mark.parametrize("url", ["runs/experience", "arrow:", "memory:", "sqlite:"])
def test_a_url_that_lacks_something_says_what(url: str) -> None:
    with pytest.raises(ConfigError, match="write"):
        open_sink(url)


def test_a_missing_driver_names_the_extra() -> None:
    program = """
import sys
sys.modules["psycopg"] = None
from relayrl.errors import MissingExtraError
from relayrl.sinks.contract import open_sink
try:
    open_sink("postgresql://localhost/x")
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'relayrl[postgres]'" in done.stdout


def test_sinks_load_no_torch() -> None:
    files = "files.arrow_files files.parquet_files files.csv_files"
    names = f"contract {files} databases.sqlite_database databases.postgres_database memory fan_out summary"
    imports = "; ".join(f"import relayrl.sinks.{name}" for name in names.split())
    program = f"import sys; {imports}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_writing_flushes_by_itself_when_the_buffer_is_full() -> None:
    settings = SinkSettings(max_buffered_bytes=1)
    try:
        with open_sink("memory:full", settings) as sink, open_source("memory:full") as source:
            for number in range(3):
                sink.write([plain_trajectory(0, number)])
                assert source.count().num_trajectories == number
    finally:
        forget("full")


def test_writing_flushes_by_itself_when_the_oldest_is_old() -> None:
    try:
        with open_sink("memory:old", SinkSettings(max_buffered_s=0.0)) as sink, open_source("memory:old") as source:
            sink.write([plain_trajectory(0, 0)])
            sink.write([plain_trajectory(0, 1)])
            assert source.count().num_trajectories == 1
    finally:
        forget("old")


def test_a_fan_out_goes_on_where_one_sink_fails(tmp_path: Path) -> None:
    good, bad = open_sink("memory:good"), open_sink(f"parquet:{tmp_path / 'bad'}")
    try:
        fan_out = FanOutSink([bad, good])
        fan_out.write([plain_trajectory(0, 0)])
        shutil.rmtree(tmp_path / "bad")
        with pytest.raises(SinkWriteError, match="parquet:"):
            fan_out.flush()
        with open_source("memory:good") as source:
            assert source.count().num_trajectories == 1
        with pytest.raises(SinkWriteError):
            fan_out.close()
    finally:
        forget("good")


def test_a_fan_out_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one sink"):
        FanOutSink([])
