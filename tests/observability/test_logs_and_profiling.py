"""Structured logs, and the sampling profiler."""

import io
import json
import logging
import re
import threading
import xml.etree.ElementTree as ET

import pytest

from relayrl.errors import ConfigError
from relayrl.observability.flame_graph import flame_graph_svg, speedscope_json
from relayrl.observability.logs import LogFormat, LogLevel, configure_logging, stop_logging
from relayrl.observability.profiling import profile


@pytest.fixture
def logged():
    stream, handlers = io.StringIO(), []
    logger = logging.getLogger("relayrl")
    level = logger.level

    def start(level: LogLevel, line_format: LogFormat) -> io.StringIO:
        handlers.append(configure_logging(level, line_format, stream=stream))
        return stream

    yield start
    for handler in handlers:
        stop_logging(handler)
    logger.setLevel(level)


def test_a_line_of_text_ends_with_its_fields(logged):
    stream = logged(LogLevel.INFO, LogFormat.TEXT)
    logging.getLogger("relayrl.part").warning("sink failed", extra={"router": 2, "retry_in_s": 0.4})
    assert re.fullmatch(r"\S+ \S+ WARNING relayrl\.part: sink failed router=2 retry_in_s=0\.4\n", stream.getvalue())


@pytest.fixture
def stamped_records():
    """Every record of the process gets a field of a library's, as Ray's factory of records gives them."""
    make_record = logging.getLogRecordFactory()

    def stamp(*args, **kwargs):
        record = make_record(*args, **kwargs)
        record._ray_timestamp_ns = 7
        return record

    logging.setLogRecordFactory(stamp)
    yield
    logging.setLogRecordFactory(make_record)


@pytest.mark.usefixtures("stamped_records")
def test_what_other_libraries_stamp_on_records_is_no_field(logged):
    stream = logged(LogLevel.INFO, LogFormat.TEXT)
    logging.getLogger("relayrl.part").warning("sink failed", extra={"router": 2})
    assert stream.getvalue().endswith(" sink failed router=2\n")


def test_a_line_of_json_is_one_object(logged):
    stream = logged(LogLevel.INFO, LogFormat.JSON)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("relayrl.part").exception("broke", extra={"path": {1}})
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["event"], line["path"]) == ("error", "relayrl.part", "broke", "{1}")
    assert "ValueError: why" in line["traceback"]


def test_levels_hold_back_what_is_less_important(logged):
    stream = logged(LogLevel.WARNING, LogFormat.TEXT)
    logging.getLogger("relayrl.part").info("nothing")
    assert stream.getvalue() == ""


def busy_work(num_samples: int) -> int:
    """Works until the sampler has looked so often."""
    (sampler,) = (thread for thread in threading.enumerate() if thread.name == "relayrl-profiler")
    counted = sampler._target.__self__  # the `StackSampler`
    total = 0
    while counted.num_samples < num_samples:
        total += sum(range(100))
    return total


def test_a_flame_graph_shows_where_the_time_went(tmp_path):
    path = tmp_path / "run.svg"
    with profile(path, interval_s=0.002) as result:
        busy_work(20)
    assert result.num_samples >= 20
    hits = sum(count for stack, count in result.stacks.items() if any("busy_work" in name for name in stack))
    assert hits > 0.5 * result.num_samples
    root = ET.fromstring(path.read_text())
    assert any("busy_work" in (title.text or "") for title in root.iter("{http://www.w3.org/2000/svg}title"))


def test_a_speedscope_file_has_a_weight_for_every_sample(tmp_path):
    path = tmp_path / "run.speedscope.json"
    with profile(path, interval_s=0.002):
        busy_work(5)
    (one,) = json.loads(path.read_text())["profiles"]
    assert len(one["samples"]) == len(one["weights"])
    assert sum(one["weights"]) == pytest.approx(one["endValue"])


def test_torch_is_traced_where_it_is_loaded(tmp_path):
    import torch

    with profile(tmp_path / "run.svg") as result:
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert result.torch_trace == tmp_path / "run.torch.json"
    names = {event.get("name") for event in json.loads(result.torch_trace.read_text())["traceEvents"]}
    assert "aten::matmul" in names


def test_a_block_that_raises_is_written_all_the_same(tmp_path):
    path = tmp_path / "run.svg"
    with pytest.raises(RuntimeError), profile(path):
        raise RuntimeError
    assert path.exists()


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.svg or \.json"), profile(tmp_path / "run.txt"):
        pass


def test_boxes_are_as_wide_as_their_share():
    svg = flame_graph_svg({("main", "a"): 3, ("main", "b <x>"): 1}, 0.01)
    widths = re.findall(r'<title>(\S+).*?width="([\d.]+)"', svg)
    assert widths == [("all", "1200.0"), ("main:", "1200.0"), ("a:", "900.0"), ("b", "300.0")]
    assert "b &lt;x&gt;" in svg
    assert json.loads(speedscope_json({("main", "a"): 3}, 0.01))["profiles"][0]["weights"] == [0.03]
