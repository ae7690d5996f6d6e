"""The runtime's metrics by name; docs/observability.md lists them, and a test holds the two to each other."""

from __future__ import annotations

from relayrl.observability.metrics import MetricRegistry


class RuntimeMetrics:
    """One agent's instruments, in a registry that exporters read."""

    def __init__(self, registry: MetricRegistry | None = None) -> None:
        self.registry = make = MetricRegistry() if registry is None else registry
        self.requests = make.counter("runtime/requests_total", "calls of request_action that gave actions")
        self.actions = make.counter("runtime/actions_total", "actions given, one per actor and request")
        self.request_failures = make.counter("runtime/request_failures_total", "calls of request_action that raised")
        self.request_seconds = make.histogram(
            "runtime/request_seconds", "duration of request_action, or of one turn of asyncio's"
        )
        self.push_backs = make.counter("runtime/push_backs_total", "requests that had to wait for room in a buffer")
        self.unlearned = make.gauge("runtime/unlearned_trajectories_count", "trajectories that wait for the trainer")
        self.model_updates = make.counter("runtime/model_updates_total", "policies published by update_model")
        self.actors = make.gauge("runtime/actors_count", "actors now")
        self.routers = make.gauge("runtime/routers_count", "routers now")
        self.buffered = make.gauge("runtime/buffered_trajectories_count", "trajectories that are not durable yet")
        self.buffered_bytes = make.gauge("runtime/buffered_bytes", "memory of those trajectories")
        self.trajectories = make.counter("runtime/trajectories_total", "trajectories handed to routers")
        self.steps = make.counter("runtime/steps_total", "steps in those trajectories")
        self.durable = make.counter("runtime/durable_trajectories_total", "trajectories that sinks have made durable")
        self.sink_failures = make.counter(
            "runtime/sink_failures_total", "writes and flushes that failed and are retried"
        )
        self.rejected = make.counter("runtime/rejected_trajectories_total", "trajectories that a sink refused for good")
        self.sink_seconds = make.histogram("runtime/sink_seconds", "duration of a sink's write or flush")
        self.config_reloads = make.counter(
            "runtime/config_reloads_total", "changes of the configuration that were applied"
        )
