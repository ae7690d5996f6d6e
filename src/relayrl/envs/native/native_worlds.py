"""What a native environment is made of: `Worlds`, many worlds as arrays, and `Blueprint`, how to make them.

To write an environment is to write a `Worlds`: where episodes begin, how one step changes the arrays, what is seen. It does
not deal with episode limits, auto-reset, final observations, seeds or checkpoints: `BatchedEnvironment` does, for all of them.

The world axis `B` is the last one of the state, because element-wise operations are fast along contiguous memory, and the
first one of what is handed out, because that is the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from relayrl.data.trees import Array, Space
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import ArrayNamespace, XArray
from relayrl.errors import EnvError


class Worlds(ABC):
    """`B` worlds as arrays. A subclass allocates them in `__init__`; the methods write into them and keep their identity."""

    state: Mapping[str, XArray]
    """By name, `[…, B]`: everything that decides the worlds' future, and nothing that follows from the rest."""
    derived: Mapping[str, XArray] = MappingProxyType({})
    """By name, `[…, B]`: what follows from `state` and is kept for the next step."""
    observations: Mapping[str, XArray]
    """By group, `[B, N, …]`: what the agents see in the current state."""
    rewards: Mapping[str, XArray]
    """By group, `[B, N]`: rewards of the last `advance`."""
    terminated: XArray
    """`[B]` bool: which worlds reached an end of their own in the last `advance`."""
    alive: Mapping[str, XArray] = MappingProxyType({})
    """By group, `[B, N]` bool: who acts in the current state, in groups whose agents die or appear inside an episode.

    It follows from `state`, and is kept current with `observations`. Who was alive before an `advance` and is not after it has
    terminated. A world must ignore actions of the others, whose rewards and observations are ignored. It ends with the last."""

    parameters: Mapping[str, XArray] = MappingProxyType({})
    """By option, `[B]`: options that may be others in every episode. At first they are those that the worlds were made with;
    `begin` and what follows reads them here."""

    compiled: Any = None
    """The kernels' own object for these worlds, which steps them many times in one call; None where there is none.

    It changes `state` alone: `observe` brings the rest up to date. A subclass of worlds that have one has none."""

    @abstractmethod
    def begin(self, draws: XArray) -> None:
        """Begin an episode in every world from uniform numbers `[D, B]` in [0, 1); leaves `observations` current."""

    @abstractmethod
    def advance(self, actions: Mapping[str, XArray]) -> None:
        """One step of every world; leaves `observations`, `rewards` and `terminated` current."""

    @abstractmethod
    def observe(self) -> None:
        """Make `observations` and `derived` follow from `state`, after it was set from outside."""

    def draw(self, state: Mapping[str, Array]) -> Array:
        """`[H, W, 3]` uint8 picture of one world; `state` is its part of the arrays, on the host, without the world axis."""
        raise EnvError(f"{type(self).__name__} draws no pictures; override draw() to render it")

    def place(self, xp: ArrayNamespace, where: XArray, other: Worlds) -> None:
        """Let the worlds that `where` `[B]` bool marks continue as the same worlds of `other` are."""
        arrays = (self.state, other.state), (self.derived, other.derived), (self.parameters, other.parameters)
        for mine, theirs in arrays:
            for name, array in mine.items():
                xp.copy_where(array, theirs[name], where)
        for shown, theirs in ((self.observations, other.observations), (self.alive, other.alive)):
            for name, array in shown.items():
                xp.copy_where(array, theirs[name], where.reshape(-1, *[1] * (array.ndim - 1)))


@dataclass(frozen=True)
class Blueprint:
    """What a `BatchedEnvironment` needs to know about a kind of world before there are any."""

    name: str
    groups: Mapping[str, AgentGroup]
    max_episode_steps: int
    num_draws: int
    """D: how many uniform numbers begin an episode."""
    build: Callable[[int], Worlds]
    """Makes the arrays of so many worlds."""
    xp: ArrayNamespace
    state_space: Space | None = None
    """Given where the observations of all agents side by side are the global state; then it is handed out too."""
    performance_return: Callable[[Mapping[str, Sequence[float]]], float] | None = None
    """What an episode is worth, from the agents' rewards; None: their mean return."""
    truncation_hides_termination: bool = False
    """Whether an episode that ends and reaches its limit in the same step counts as truncated only, as in mpe2."""
    limit_option: str = "max_episode_steps"
    """What the option is called that limits the steps of an episode."""
