"""Metrics for OpenTelemetry: sent as OTLP over HTTP every so often, and once more when it closes.

    with OtelExporter(agent.metrics, "http://127.0.0.1:4318/v1/metrics"):
        …

`runtime/requests_total` is spelt `relayrl.runtime.requests_total`. Counters are cumulative sums from when the exporter was
made; histograms keep their buckets. A collector that does not answer costs a log line, never a value: the next export has
all of it.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from types import TracebackType
from typing import Any, Self

from relayrl.errors import ConfigError, MissingExtraError
from relayrl.observability.metrics import HistogramSnapshot, MetricKind, MetricRegistry, MetricSnapshot

_log = logging.getLogger("relayrl.observability.otel_exporter")
JOIN_TIMEOUT_S = 30.0


def otel_name(name: str) -> str:
    """How OpenTelemetry spells a metric of ours."""
    return "relayrl." + name.replace("/", ".")


class OtelExporter:
    """Sends the metrics of one registry every `interval_s` until it is closed."""

    def __init__(
        self,
        metrics: MetricRegistry,
        endpoint: str = "http://127.0.0.1:4318/v1/metrics",
        *,
        interval_s: float = 15.0,
        timeout_s: float = 5.0,
        service_name: str = "relayrl",
    ) -> None:
        if interval_s <= 0 or timeout_s <= 0:
            raise ConfigError(f"interval_s and timeout_s must be positive, not {interval_s} and {timeout_s}")
        try:
            self._sdk = importlib.import_module("opentelemetry.sdk.metrics.export")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            scopes = importlib.import_module("opentelemetry.sdk.util.instrumentation")
            exporters = importlib.import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        except ImportError as error:
            raise MissingExtraError("the OpenTelemetry exporter", "otel") from error
        self._metrics, self._interval_s, self._timeout_s = metrics, interval_s, timeout_s
        self._exporter = exporters.OTLPMetricExporter(endpoint=endpoint, timeout=timeout_s)
        self._resource = resources.Resource({"service.name": service_name})
        self._scope = scopes.InstrumentationScope("relayrl")
        self._start_ns = time.time_ns()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relayrl-otel", daemon=True)
        self._thread.start()

    def export_now(self) -> bool:
        """Send everything now; gives whether the collector took it."""
        outcome = self._exporter.export(self._data(), timeout_millis=self._timeout_s * 1000.0)
        if outcome is not self._sdk.MetricExportResult.SUCCESS:
            _log.warning("the OpenTelemetry collector did not take the metrics; the next export has them")
            return False
        return True

    def close(self) -> None:
        """Send a last time and stop."""
        self._stop.set()
        self._thread.join(JOIN_TIMEOUT_S)
        self.export_now()
        self._exporter.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.export_now()

    def _data(self) -> Any:
        now_ns = time.time_ns()
        metrics = [self._metric(each, now_ns) for each in self._metrics.snapshot()]
        scope = self._sdk.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        return self._sdk.MetricsData(
            resource_metrics=[self._sdk.ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")]
        )

    def _metric(self, metric: MetricSnapshot, now_ns: int) -> Any:
        cumulative = self._sdk.AggregationTemporality.CUMULATIVE
        if isinstance(metric.value, HistogramSnapshot):
            data = self._sdk.Histogram(
                data_points=[self._histogram_point(metric.value, now_ns)], aggregation_temporality=cumulative
            )
        else:
            point = self._sdk.NumberDataPoint(
                attributes={}, start_time_unix_nano=self._start_ns, time_unix_nano=now_ns, value=metric.value
            )
            if metric.kind is MetricKind.COUNTER:
                data = self._sdk.Sum(data_points=[point], aggregation_temporality=cumulative, is_monotonic=True)
            else:
                data = self._sdk.Gauge(data_points=[point])
        unit = metric.name.rpartition("_")[2]
        return self._sdk.Metric(
            name=otel_name(metric.name),
            description=metric.description,
            unit={"seconds": "s", "bytes": "By"}.get(unit, "1"),
            data=data,
        )

    def _histogram_point(self, histogram: HistogramSnapshot, now_ns: int) -> Any:
        used = [bound for bound, count in zip(histogram.bounds, histogram.counts, strict=False) if count]
        return self._sdk.HistogramDataPoint(
            attributes={},
            start_time_unix_nano=self._start_ns,
            time_unix_nano=now_ns,
            count=histogram.count,
            sum=histogram.total,
            bucket_counts=list(histogram.counts),
            explicit_bounds=list(histogram.bounds),
            min=0.0,
            max=max(used, default=0.0),
        )
