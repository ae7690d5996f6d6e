"""An actor that acts by another one: what it does not decide itself is the other's."""

from __future__ import annotations

from relayrl.data.trees import Array, Tree
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.exploration import Exploration


class ActorWrapper(Actor):
    """`actor` is the one inside. A subclass has `decide`, and what of the actor's properties holds for its own lanes."""

    def __init__(self, actor: Actor) -> None:
        self.actor, self.head, self.observation_space = actor, actor.head, actor.observation_space

    def explore(self, exploration: Exploration) -> None:
        self.actor.explore(exploration)

    def hold(self) -> None:
        self.actor.hold()

    def release(self) -> None:
        self.actor.release()

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        return self.actor.distribution(obs, mask)
