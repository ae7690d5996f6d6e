"""Metrics for Prometheus: an HTTP endpoint `/metrics`, on loopback by default.

    with PrometheusExporter(agent.metrics, port=9464) as exporter:
        print(exporter.url)

`runtime/requests_total` is spelt `relayrl_runtime_requests_total`; every other character that Prometheus does not allow
becomes an underscore.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from relayrl.errors import ConfigError, MissingExtraError
from relayrl.observability.metrics import HistogramSnapshot, MetricKind, MetricRegistry

JOIN_TIMEOUT_S = 10.0


def prometheus_name(name: str) -> str:
    """How Prometheus spells a metric of ours."""
    return "relayrl_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def prometheus_text(metrics: MetricRegistry) -> bytes:
    """All metrics of a registry as `/metrics` shows them, for a server that has HTTP of its own."""
    client, registry = _client_with(metrics)
    return bytes(client.generate_latest(registry))


class PrometheusExporter:
    """Serves the metrics of one registry from when it is made until it is closed. Port 0 takes a free one."""

    def __init__(self, metrics: MetricRegistry, port: int = 9464, host: str = "127.0.0.1") -> None:
        client, registry = _client_with(metrics)
        try:
            self._server, self._thread = client.start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} for /metrics: {error.strerror}; choose another port"
            ) from error
        self.host, self.port = host, int(self._server.server_port)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving; the port is free when this returns."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(JOIN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _client_with(metrics: MetricRegistry) -> tuple[Any, Any]:
    """prometheus_client, and a registry of it that has our metrics."""
    try:
        client = importlib.import_module("prometheus_client")
        core = importlib.import_module("prometheus_client.core")
    except ImportError as error:
        raise MissingExtraError("the Prometheus exporter", "prometheus") from error
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_Families(metrics, core))
    return client, registry


class _Families:
    """What prometheus_client asks at every scrape."""

    def __init__(self, metrics: MetricRegistry, core: Any) -> None:
        self._metrics, self._core = metrics, core

    def collect(self) -> Iterator[Any]:
        for metric in self._metrics.snapshot():
            name = prometheus_name(metric.name)
            if isinstance(metric.value, HistogramSnapshot):
                family = self._core.HistogramMetricFamily(name, metric.description)
                family.add_metric([], _cumulative(metric.value), metric.value.total)
            elif metric.kind is MetricKind.COUNTER:
                family = self._core.CounterMetricFamily(name, metric.description, value=metric.value)
            else:
                family = self._core.GaugeMetricFamily(name, metric.description, value=metric.value)
            yield family


def _cumulative(histogram: HistogramSnapshot) -> list[tuple[str, int]]:
    bounds = [*(repr(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(histogram.counts), strict=True))
