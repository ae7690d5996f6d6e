"""RelayRL: multi-actor, multi-agent deep reinforcement learning.

    run = relayrl.train("CartPole-v1", algo="ppo", steps=50_000)

`train`, `load_run` and `Run` come from `relayrl.api` and are loaded when they are first used: importing this package costs
nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relayrl.api import Run, load_run, train

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "load_run", "train"]


def __getattr__(name: str) -> Any:
    if name in ("Run", "load_run", "train"):
        from relayrl import api

        return getattr(api, name)
    raise AttributeError(f"module 'relayrl' has no attribute {name!r}")
