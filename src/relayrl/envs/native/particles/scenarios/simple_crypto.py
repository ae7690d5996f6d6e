"""simple_crypto: Alice tells Bob one bit over a channel that Eve hears too; Alice and Bob share a key. Nobody moves.

Everyone's word is compared with the message: `error = |word − message|²`, and 0 where nothing was said. Eve earns −error(Eve),
Alice and Bob earn error(Eve) − error(Bob). Observations: Alice the message and the key, Bob the key and Alice's word, Eve
Alice's word.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import XArray
from relayrl.envs.native.native_settings import ParticleSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.layout import AgentBody, LandmarkBody, Layout, particle_blueprint
from relayrl.envs.native.particles.observation_columns import ObservationColumns
from relayrl.envs.native.particles.particle_worlds import ParticleWorlds
from relayrl.envs.native.rasteriser import BLUE, GREEN, INK, RED, SAND, Colour

_EVE, _BOB, _ALICE = range(3)
_MESSAGE, _KEY = range(2)


class SimpleCryptoSettings(ParticleSettings):
    """Options of `native:simple_crypto`."""


class SimpleCryptoWorlds(ParticleWorlds):
    """Eve, Bob, Alice, two landmarks; `choice` `[2, B]`: the message and the key, each one of the two landmarks."""

    def __init__(
        self, settings: SimpleCryptoSettings, layout: Layout, groups: Mapping[str, AgentGroup], num_worlds: int
    ) -> None:
        super().__init__(settings, layout, groups, num_worlds)
        xp = self.xp
        self._codes = xp.from_host(np.eye(4, 2, dtype=self.dtype))
        self._secret = xp.zeros((4, 2, num_worlds), self.dtype)
        self.derived = {**self.derived, "secret": self._secret}
        eve, bob, alice = (ObservationColumns(xp, observation) for observation in self.observations.values())
        self._eve_hears = eve.numbers(4)
        self._bob_key, self._bob_hears = bob.numbers(4), bob.numbers(4)
        self._alice_message, self._alice_key = alice.numbers(4), alice.numbers(4)
        self._eve_reward, self._bob_reward, self._alice_reward = (reward[:, 0] for reward in self.rewards.values())

    def update_geometry(self) -> None:
        """Nobody moves, and nobody sees where the others are."""

    def reward(self) -> None:
        xp = self.xp
        errors = self._errors(self.message[:, : _BOB + 1])
        team = errors[_EVE] - errors[_BOB]
        xp.negative(errors[_EVE], out=self._eve_reward)
        xp.copy(self._bob_reward, team)
        xp.copy(self._alice_reward, team)

    def write_fixed_observations(self) -> None:
        xp = self.xp
        xp.copy(self._secret, self._codes[:, self.choice])
        xp.copy(self._alice_message, self._secret[:, _MESSAGE : _MESSAGE + 1])
        xp.copy(self._alice_key, self._secret[:, _KEY : _KEY + 1])
        xp.copy(self._bob_key, self._secret[:, _KEY : _KEY + 1])

    def write_observations(self) -> None:
        said = self.message[:, _ALICE : _ALICE + 1]
        self.xp.copy_envs_first(self._bob_hears, said)
        self.xp.copy_envs_first(self._eve_hears, said)

    def _errors(self, words: XArray) -> XArray:
        """[listener, B] squared distance of each listener's word `[4, listener, B]` to the message; 0 for silence."""
        difference = words - self._secret[:, _MESSAGE : _MESSAGE + 1]
        squares = self.xp.square(difference)
        said_something = self.xp.any_along(words != 0, 0)
        return (squares[0] + squares[1] + squares[2] + squares[3]) * said_something

    def colours(self, state: Mapping[str, Array]) -> list[Colour]:
        landmarks: list[Colour] = [SAND, BLUE]
        message, _ = state["choice"]
        return [RED, landmarks[int(message)], GREEN, *landmarks]


def blueprint(settings: SimpleCryptoSettings) -> Blueprint:
    """`native:simple_crypto` with these settings."""
    agents = [AgentBody(f"{name}_0", colour=INK, moves=False, speaks=True) for name in ("eve", "bob", "alice")]
    layout = Layout(agents, [LandmarkBody()] * 2, message_size=4, choices=(2, 2))
    return particle_blueprint(
        "simple_crypto",
        settings,
        layout,
        [4, 8, 8],
        lambda groups, num_worlds: SimpleCryptoWorlds(settings, layout, groups, num_worlds),
    )
