"""The native environments by name, and how to make one from its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from relayrl.config.settings import parse_settings
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.native.classic import acrobot, cart_pole, mountain_car_continuous, pendulum
from relayrl.envs.native.duels import pong, soccer
from relayrl.envs.native.grids import baton_pass, dungeon_escape, rooms
from relayrl.envs.native.native_settings import NativeSettings
from relayrl.envs.native.native_worlds import Blueprint
from relayrl.envs.native.particles.scenarios import (
    simple_adversary,
    simple_crypto,
    simple_push,
    simple_reference,
    simple_speaker_listener,
    simple_spread,
    simple_tag,
    simple_world_comm,
)
from relayrl.errors import UnknownNameError

_Entry: TypeAlias = tuple[type[NativeSettings], Callable[[Any], Blueprint]]

_ENVIRONMENTS: dict[str, _Entry] = {
    "CartPole": (cart_pole.CartPoleSettings, cart_pole.blueprint),
    "Pendulum": (pendulum.PendulumSettings, pendulum.blueprint),
    "MountainCarContinuous": (
        mountain_car_continuous.MountainCarContinuousSettings,
        mountain_car_continuous.blueprint,
    ),
    "Acrobot": (acrobot.AcrobotSettings, acrobot.blueprint),
    "simple_spread": (simple_spread.SimpleSpreadSettings, simple_spread.blueprint),
    "simple_speaker_listener": (
        simple_speaker_listener.SimpleSpeakerListenerSettings,
        simple_speaker_listener.blueprint,
    ),
    "simple_reference": (simple_reference.SimpleReferenceSettings, simple_reference.blueprint),
    "simple_tag": (simple_tag.SimpleTagSettings, simple_tag.blueprint),
    "simple_adversary": (simple_adversary.SimpleAdversarySettings, simple_adversary.blueprint),
    "simple_push": (simple_push.SimplePushSettings, simple_push.blueprint),
    "simple_crypto": (simple_crypto.SimpleCryptoSettings, simple_crypto.blueprint),
    "simple_world_comm": (simple_world_comm.SimpleWorldCommSettings, simple_world_comm.blueprint),
    "rooms": (rooms.RoomsSettings, rooms.blueprint),
    "dungeon_escape": (dungeon_escape.DungeonEscapeSettings, dungeon_escape.blueprint),
    "baton_pass": (baton_pass.BatonPassSettings, baton_pass.blueprint),
    "pong": (pong.PongSettings, pong.blueprint),
    "soccer": (soccer.SoccerSettings, soccer.blueprint),
}


def names() -> tuple[str, ...]:
    """All native environments."""
    return tuple(_ENVIRONMENTS)


def settings_class(name: str) -> type[NativeSettings]:
    """The options of an environment, with their defaults and descriptions."""
    return _entry(name)[0]


def make(name: str, **options: Any) -> BatchedEnvironment:
    """A native environment; `options` are those of its original, `dtype` and `device`. A wrong one is a `ConfigError`."""
    settings, blueprint = _entry(name)
    return BatchedEnvironment(blueprint(parse_settings(settings, options)))


def _entry(name: str) -> _Entry:
    if name not in _ENVIRONMENTS:
        raise UnknownNameError("native environment", name, _ENVIRONMENTS)
    return _ENVIRONMENTS[name]
