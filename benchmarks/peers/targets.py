"""What we ask of ourselves: for each work, a ratio to a peer's figure of the same round."""

from __future__ import annotations

from dataclasses import dataclass

ANY_TORCH = "best torch peer"
"""Stands for the fastest of the peers that run on torch, with whatever variant is its best."""
TORCH_PEERS = ("Stable-Baselines3", "skrl", "Tianshou", "RLlib", "Sample Factory", "TorchRL")
OURS = "RelayRL"
JAX = "JAX, one program"


@dataclass(frozen=True)
class Target:
    """`ratio` is ours / theirs for rates, theirs / ours for seconds and memory: larger is better, `at_least` is the target.

    `peer_work` and `peer_variant` say whose figure it is compared with where that is not the same work.
    """

    work: str
    peer: str
    at_least: float
    metric: str = "env_steps_per_s"
    variant: str | None = None
    peer_variant: str | None = None
    peer_work: str | None = None

    @property
    def compared_work(self) -> str:
        return self.peer_work or self.work

    @property
    def smaller_is_better(self) -> bool:
        return self.metric != "env_steps_per_s"


TARGETS: list[Target] = [
    *(Target("W1", peer, 5.0) for peer in TORCH_PEERS),
    Target("W1", JAX, 0.5),
    Target("W2", "Stable-Baselines3", 5.0),
    Target("W2", ANY_TORCH, 3.0),
    Target("W2", JAX, 1.0),
    Target("W2k", JAX, 2.0),
    Target("W3", "Stable-Baselines3", 3.0, metric="seconds_to_threshold"),
    *(
        Target("W4a", peer, at_least, variant=variant)
        for variant in ("mappo", "ippo")
        for peer, at_least in (("Stable-Baselines3", 2.0), ("RLlib", 3.5))
    ),
    *(Target("W4b", "BenchMARL", 2.5, variant=variant, peer_variant=variant) for variant in ("mappo", "ippo")),
    *(
        Target("W4c", "BenchMARL", 10.0, variant=variant, peer_variant=variant, peer_work="W4b")
        for variant in ("mappo", "ippo")
    ),
    *(Target(f"W5-{algo}", "Stable-Baselines3", 2.5) for algo in ("td3", "sac", "ddpg")),
    Target("W6a", "Stable-Baselines3", 3.0),
    Target("W6b", "Stable-Baselines3", 2.5),
    Target("W1", "Stable-Baselines3", 2.0, metric="seconds_to_first_update"),
    Target("W2", "Stable-Baselines3", 1.0, metric="training_peak_mib"),
    Target("W2", "Stable-Baselines3", 1.0, metric="process_peak_mib"),
]

METRIC_NAMES = {
    "env_steps_per_s": "env steps/s",
    "seconds_to_threshold": "s from process start to 475 evaluated",
    "seconds_to_first_update": "s from process start to the end of the first update",
    "training_peak_mib": "MiB at most until training ends",
    "process_peak_mib": "MiB at most, whole process",
}
