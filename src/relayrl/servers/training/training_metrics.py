"""What a training server counts, for `/metrics`, `/status` and `--watch`."""

from __future__ import annotations

from relayrl.observability.metrics import MetricRegistry


class TrainingMetrics:
    """Instruments of one training server, in one registry with those of its endpoint."""

    def __init__(self, registry: MetricRegistry | None = None) -> None:
        self.registry = registry = registry or MetricRegistry()
        self.actors = registry.gauge("server/actors", "actors that were heard of lately")
        self.received = registry.counter("server/trajectories_total", "trajectories that became durable")
        self.steps = registry.counter("server/steps_total", "environment steps of trajectories that became durable")
        self.bytes = registry.counter("server/trajectory_bytes_total", "bytes of trajectories that became durable")
        self.duplicates = registry.counter("server/duplicates_total", "messages that were here already")
        self.out_of_order = registry.counter(
            "server/out_of_order_total", "messages that came before one that is missing"
        )
        self.busy = registry.counter("server/busy_total", "messages that were put off because the intake was full")
        self.invalid = registry.counter(
            "server/dropped_invalid_total", "messages that were refused as invalid and dropped"
        )
        self.stale = registry.counter("server/dropped_stale_total", "trajectories that were too old to learn from")
        self.learned = registry.counter("server/learned_total", "trajectories that were learned from")
        self.updates = registry.counter("server/updates_total", "updates of the policies")
        self.lag = registry.gauge("server/policy_lag_versions", "largest lag in the latest update")
        self.queue_steps = registry.gauge("server/queue_steps", "environment steps that wait for an update")
        self.version = registry.gauge("server/policy_version", "version of the newest policy")
        self.models_sent = registry.counter("server/models_sent_total", "policies that actors have fetched")
        self.journal_seconds = registry.histogram("server/journal_seconds", "time to make a batch durable")
        self.journal_failures = registry.counter(
            "server/journal_failures_total", "times the journal could not be written"
        )
