"""Native environments: classic and particle worlds as batched array code, step for step the same as their originals.

    from relayrl.envs import native

    env = native.make("simple_spread", N=4, continuous_actions=True)

To write your own, subclass `Worlds`, describe it in a `Blueprint` and hand that to `BatchedEnvironment`.
"""

from relayrl.envs.native.array_namespace import ArrayNamespace, XArray, namespace_of
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.native.native_registry import make, names, settings_class
from relayrl.envs.native.native_worlds import Blueprint, Worlds

__all__ = [
    "ArrayNamespace",
    "BatchedEnvironment",
    "Blueprint",
    "Worlds",
    "XArray",
    "make",
    "names",
    "namespace_of",
    "settings_class",
]
