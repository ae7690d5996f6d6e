"""Who does which work: the peers, their variants of each work, and the script that runs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from targets import JAX, OURS, TARGETS

OWN_CHOICE = 0
"""Number of threads: none asked for, RelayRL takes what it thinks best."""
THREADS = (1, 2)
"""What is tried with every peer; its better one counts."""


@dataclass(frozen=True)
class Job:
    """One peer's variant of one work. `venv` names the requirements that its script needs; ours needs none of its own."""

    peer: str
    work: str
    variant: str
    script: str
    venv: str | None
    threads: tuple[int, ...] = THREADS

    @property
    def name(self) -> str:
        return f"{self.peer}/{self.work}" + (f"/{self.variant}" if self.variant else "")


def _jobs() -> Iterable[Job]:
    cart_poles = ("CartPole-v1", "native:CartPole", "Python CartPole")
    ours = {"W1": cart_poles, "W2": cart_poles, "W2k": cart_poles[:2], "W3": ("CartPole-v1",)}
    ours |= dict.fromkeys(("W4a", "W4b", "W4c"), ("mappo", "ippo"))
    ours |= dict.fromkeys(("W5-td3", "W5-sac", "W5-ddpg", "W6a", "W6b"), ("",))
    for work, variants in ours.items():
        yield from (Job(OURS, work, variant, "relayrl_worker.py", None, (OWN_CHOICE,)) for variant in variants)
    for work in ("W1", "W2"):
        yield Job("Stable-Baselines3", work, "", "sb3_ppo.py", "sb3")
        yield from (Job("skrl", work, variant, "skrl_ppo.py", "skrl") for variant in ("sync", "vector"))
        yield Job("Tianshou", work, "", "tianshou_ppo.py", "tianshou")
        yield from (Job("RLlib", work, variant, "rllib_ppo.py", "rllib") for variant in ("sync", "vector"))
        for variant in ("serial", "async"):
            yield Job("Sample Factory", work, variant, "sample_factory_ppo.py", "sample_factory")
        yield Job("TorchRL", work, "", "torchrl_ppo.py", "torchrl")
    yield from (Job(JAX, work, "", "jax_ppo.py", "jax") for work in ("W1", "W2", "W2k"))
    yield Job("Stable-Baselines3", "W3", "", "sb3_until_solved.py", "sb3")
    yield Job("Stable-Baselines3", "W4a", "SuperSuit", "sb3_ppo.py", "sb3")
    yield Job("RLlib", "W4a", "", "rllib_ppo.py", "rllib")
    yield from (Job("BenchMARL", "W4b", variant, "benchmarl_ppo.py", "benchmarl") for variant in ("mappo", "ippo"))
    for work in ("W5-td3", "W5-sac", "W5-ddpg"):
        yield Job("Stable-Baselines3", work, "", "sb3_off_policy.py", "sb3")
    yield from (Job("Stable-Baselines3", work, "", "sb3_ppo.py", "sb3") for work in ("W6a", "W6b"))


JOBS = list(_jobs())


def selected(only: str | None) -> list[Job]:
    """The jobs of `PEER`, `PEER/WORK` or `PEER/WORK/VARIANT` (None: of all), with ours beside them, work by work."""
    theirs = [job for job in JOBS if job.peer != OURS and (only is None or _is_meant(job, only))]
    if not theirs and only is not None:
        raise SystemExit(f"no job {only!r}; there are: {', '.join(job.name for job in JOBS if job.peer != OURS)}")
    works = {job.work for job in theirs}
    works |= {target.work for target in TARGETS if target.compared_work in works}
    chosen = [job for job in JOBS if job in theirs or (job.peer == OURS and job.work in works)]
    order = list(dict.fromkeys(job.work for job in JOBS))
    return sorted(chosen, key=lambda job: order.index(job.work))


def _is_meant(job: Job, only: str) -> bool:
    wanted, has = only.lower().split("/"), job.name.lower().split("/")
    return wanted == has[: len(wanted)]
