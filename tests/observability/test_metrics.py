"""Instruments, and the two exporters over real sockets."""

import re
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from relayrl.errors import ConfigError, MissingExtraError, UnknownNameError
from relayrl.observability.metrics import MetricRegistry
from relayrl.observability.otel_exporter import OtelExporter, otel_name
from relayrl.observability.prometheus_exporter import PrometheusExporter, prometheus_name
from relayrl.runtime.agents.runtime_metrics import RuntimeMetrics
from waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs" / "observability.md"


@pytest.fixture
def metrics():
    registry = MetricRegistry()
    registry.counter("area/things_total", "things").inc(3)
    registry.gauge("area/level_count", "level").set(2.5)
    seconds = registry.histogram("area/work_seconds", "work", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        seconds.observe(value)
    return registry


def test_counts_of_many_threads_add_up(metrics):
    counter, histogram = metrics.counter("c", ""), metrics.histogram("h_seconds", "")

    def work() -> None:
        for _ in range(5000):
            counter.inc()
            histogram.observe(0.001)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counter.value == histogram.read().count == 40_000


def test_a_histogram_counts_values_up_to_each_bound(metrics):
    snapshot = metrics["area/work_seconds"].read()
    assert snapshot.counts == (2, 1, 1)
    assert snapshot.total == pytest.approx(7.65)
    assert snapshot.quantile(0.5) == 0.1
    assert snapshot.quantile(0.7) == 1.0
    assert snapshot.quantile(0.99) == float("inf")


def test_a_gauge_may_follow_a_function(metrics):
    gauge, things = metrics.gauge("area/level_count", ""), [1, 2]
    gauge.follow(lambda: len(things))
    things.append(3)
    assert gauge.value == 3


def test_names_are_unique_and_unknown_ones_have_a_hint(metrics):
    assert metrics.counter("area/things_total", "again").value == 3
    with pytest.raises(ConfigError, match="is a counter, not a gauge"):
        metrics.gauge("area/things_total", "")
    with pytest.raises(UnknownNameError, match="area/things_total"):
        metrics["area/thing_total"]
    with pytest.raises(ConfigError, match="grow strictly"):
        metrics.histogram("h", "", bounds=(1.0, 1.0))


def test_prometheus_scrapes_every_kind(metrics):
    with PrometheusExporter(metrics, port=0) as exporter:
        assert exporter.url.startswith("http://127.0.0.1:")
        text = urllib.request.urlopen(exporter.url, timeout=10).read().decode()
        metrics.counter("area/things_total", "").inc()
        again = urllib.request.urlopen(exporter.url, timeout=10).read().decode()
    assert "relayrl_area_things_total 3.0" in text
    assert "relayrl_area_things_total 4.0" in again
    assert "relayrl_area_level_count 2.5" in text
    assert 'relayrl_area_work_seconds_bucket{le="0.1"} 2.0' in text
    assert 'relayrl_area_work_seconds_bucket{le="+Inf"} 4.0' in text
    assert "relayrl_area_work_seconds_sum 7.65" in text


def test_a_closed_prometheus_exporter_frees_its_port_and_thread(metrics):
    before = threading.active_count()
    exporter = PrometheusExporter(metrics, port=0)
    port = exporter.port
    with pytest.raises(ConfigError, match="cannot listen"):
        PrometheusExporter(metrics, port=port)
    exporter.close()
    PrometheusExporter(metrics, port=port).close()
    assert threading.active_count() == before


class Collector:
    """An OTLP collector: keeps the requests that it was sent."""

    def __init__(self) -> None:
        bodies = self.bodies = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                bodies.append(
                    (
                        self.path,
                        self.headers.get("Content-Encoding"),
                        self.rfile.read(int(self.headers["Content-Length"])),
                    )
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/metrics"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    def metrics(self) -> dict:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        path, encoding, body = self.bodies[-1]
        assert (path, encoding) == ("/v1/metrics", None)
        request = ExportMetricsServiceRequest.FromString(body)
        (resource,) = request.resource_metrics
        assert resource.resource.attributes[0].value.string_value == "relayrl"
        return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.close()


def test_opentelemetry_gets_every_kind(metrics, collector):
    with OtelExporter(metrics, collector.url, interval_s=60):
        pass
    got = collector.metrics()
    things, level, work = (got[f"relayrl.area.{name}"] for name in ("things_total", "level_count", "work_seconds"))
    assert things.sum.is_monotonic
    assert things.sum.data_points[0].as_int == 3
    assert level.gauge.data_points[0].as_double == 2.5
    (point,) = work.histogram.data_points
    assert list(point.bucket_counts) == [2, 1, 1]
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert (point.count, work.unit) == (4, "s")


def test_opentelemetry_sends_every_interval_and_leaves_no_thread(metrics, collector):
    before = threading.active_count()
    exporter = OtelExporter(metrics, collector.url, interval_s=0.05)
    wait_until(lambda: len(collector.bodies) >= 2)
    exporter.close()
    assert len(collector.bodies) >= 3
    assert threading.active_count() <= before + 1  # the collector's own connection may still be closing


def test_a_collector_that_is_not_there_costs_a_log_line(metrics, caplog):
    collector = Collector()
    collector.close()
    exporter = OtelExporter(metrics, collector.url, interval_s=60, timeout_s=0.3)
    exporter.close()
    assert "did not take the metrics" in caplog.text


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("prometheus_client", lambda: PrometheusExporter(MetricRegistry(), port=0), "prometheus"),
        ("opentelemetry.sdk.metrics.export", lambda: OtelExporter(MetricRegistry()), "otel"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(monkeypatch, module, make, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"relayrl\[{extra}\]"):
        make()


def test_the_page_lists_the_runtime_s_metrics_and_no_others():
    rows = re.findall(r"^\| `(runtime/[a-z_]+)` \| (\w+) \| (.+?) \|$", DOCS.read_text(), re.MULTILINE)
    expected = [(each.name, each.kind.value, each.description) for each in RuntimeMetrics().registry.snapshot()]
    assert sorted(rows) == expected


def test_names_are_spelt_for_each_system():
    assert prometheus_name("runtime/requests_total") == "relayrl_runtime_requests_total"
    assert otel_name("runtime/requests_total") == "relayrl.runtime.requests_total"
