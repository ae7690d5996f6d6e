"""The inference server's metrics by name; docs/inference.md lists them, and a test holds the two to each other."""

from __future__ import annotations

from collections.abc import Callable

from relayrl.observability.metrics import MetricRegistry

CODES = (
    "malformed",
    "observation",
    "mask",
    "unknown_group",
    "unknown_version",
    "busy",
    "deadline",
    "inference",
    "failed",
)


class InferenceMetrics:
    """One server's instruments."""

    def __init__(
        self, registry: MetricRegistry, num_waiting: Callable[[], float], num_models: Callable[[], float]
    ) -> None:
        make = registry
        self.requests = make.counter("inference/requests_total", "requests that were answered with actions")
        self.actions = make.counter("inference/actions_total", "rows in those requests")
        self.batches = make.counter("inference/batches_total", "forward passes")
        self.seconds = make.histogram("inference/request_seconds", "time of a batch's oldest request in the server")
        self.episodes = make.counter("inference/episodes_total", "returns of episodes that clients reported")
        self._failures = {
            code: make.counter(f"inference/failed_{code}_total", f"requests answered with the error {code}")
            for code in CODES
        }
        make.gauge("inference/waiting_rows", "rows that wait for their batch").follow(num_waiting)
        make.gauge("inference/models_count", "models that are loaded").follow(num_models)

    def answered(self, since_s: float, num_requests: int, num_rows: int, now_s: float) -> None:
        """A batch was answered whose oldest request came at `since_s`."""
        self.requests.inc(num_requests)
        self.actions.inc(num_rows)
        self.batches.inc()
        self.seconds.observe(now_s - since_s)

    def failed(self, code: str) -> None:
        """A request was answered with an error."""
        self._failures.get(code, self._failures["failed"]).inc()
