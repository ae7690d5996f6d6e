"""RelayRL: multi-actor, multi-agent deep reinforcement learning."""

__version__ = "0.1.0"
