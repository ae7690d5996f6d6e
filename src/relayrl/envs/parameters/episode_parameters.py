"""What the environments of one loop are given when their episodes begin, and how.

An environment offers parameters in one of three ways, which `route_to` looks for:

- a method `set_parameters(dict)`, its own or, behind wrappers, that of what `unwrapped` gives;
- `reset(options=dict)`, where `environment.parameters_through` says so, since every Gymnasium environment takes options;
- arguments of its constructor: it is built anew when an episode begins with other values than the one before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.parameters.parameter_settings import Delivery, ParameterSettings, Values, values_of
from relayrl.errors import ConfigError

Setter = Callable[[Values], Any]
_NO_STREAM = -1


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """The parameters of a run's environments, and how they are given."""

    parameters: Mapping[str, ParameterSettings]
    delivery: Delivery = Delivery.AUTO

    @property
    def names(self) -> str:
        return ", ".join(repr(name) for name in self.parameters)


class EpisodeParameters:
    """The values of each environment's running episode; environments count from 0."""

    def __init__(self, plan: ParameterPlan, route: Delivery, num_envs: int) -> None:
        self.plan, self.route = plan, route
        self._streams = [_NO_STREAM] * num_envs
        self._episodes = [0] * num_envs
        self._lessons = [[0] * len(plan.parameters)] * num_envs
        self.values = [first_values(plan)] * num_envs

    def introduce(self, envs: Sequence[Any]) -> None:
        """Give environments parameters before their first reset, which only shows what they are like."""
        for env in envs:
            if self.route is Delivery.SET_PARAMETERS and (setter := setter_of(env)) is not None:
                setter(dict(first_values(self.plan)))

    def begin(self, b: int, seed: int | None, lessons: Array) -> Values:
        """What the next episode of environment `b` has; a seed begins its stream anew."""
        if seed is not None:
            self._streams[b], self._episodes[b] = seed, 0
        elif self._streams[b] == _NO_STREAM:
            self._streams[b] = secrets.randbits(31)
        else:
            self._episodes[b] += 1
        self._lessons[b] = lessons[: len(self.plan.parameters)].tolist()
        self.values[b] = self._drawn(b)
        return self.values[b]

    def rebuilt_seed(self, b: int) -> int:
        """The seed of an environment that was built anew for its next episode: its generator is new as well."""
        return int(np.random.default_rng([self._streams[b], self._episodes[b]]).integers(1 << 31))

    def get_state(self, b: int) -> dict[str, Array]:
        numbers = {"stream": self._streams[b], "episode": self._episodes[b], "lessons": self._lessons[b]}
        return {f"parameters/{name}": np.array(own, np.int64) for name, own in numbers.items()}

    def set_state(self, b: int, state: Mapping[str, Array]) -> Values:
        """Go on from `get_state`; gives what the running episode has."""
        self._streams[b], self._episodes[b] = int(state["parameters/stream"]), int(state["parameters/episode"])
        self._lessons[b] = state["parameters/lessons"].tolist()
        self.values[b] = self._drawn(b)
        return self.values[b]

    def _drawn(self, b: int) -> Values:
        return values_of(self.plan.parameters, self._lessons[b], self._streams[b], self._episodes[b])


def first_values(plan: ParameterPlan) -> Values:
    """What environments are built with, before their first episode."""
    return values_of(plan.parameters, [0] * len(plan.parameters), 0, 0)


def route_to(env: Any, plan: ParameterPlan, name: str) -> Delivery:
    """How parameters reach `env`, which was built without any."""
    if plan.delivery is Delivery.AUTO:
        return Delivery.CONSTRUCTOR if setter_of(env) is None else Delivery.SET_PARAMETERS
    if plan.delivery is Delivery.SET_PARAMETERS and setter_of(env) is None:
        raise ConfigError(f"{name} has no set_parameters(); leave environment.parameters_through out, or write one")
    return plan.delivery


def built_with(build: Callable[[Values], Any], values: Values, plan: ParameterPlan, name: str) -> Any:
    """An environment whose constructor takes parameters; `ConfigError` where it does not."""
    try:
        return build(values)
    except (TypeError, ConfigError) as error:
        takes_none = "takes no arguments" in str(error)
        refused = [each for each in values if takes_none or f"'{each}'" in str(error)]
        if not refused:
            raise
        raise ConfigError(
            f"{name} offers no environment parameter {refused[0]!r}: it has no set_parameters() and its constructor no "
            f"argument of that name ({error}); write set_parameters(self, values), or set environment.parameters_through "
            "to reset_options"
        ) from error


def setter_of(env: Any) -> Setter | None:
    """`set_parameters` of an environment, through its wrappers."""
    for each in _layers(env):
        found = getattr(each, "set_parameters", None)
        if callable(found):
            setter: Setter = found
            return setter
    return None


def _layers(env: Any) -> Sequence[Any]:
    """An environment, what RelayRL's adapters and wrappers hold, and what is behind all wrappers."""
    layers = [env]
    while (inner := _inside(layers[-1])) is not None:
        layers.append(inner)
    bare = getattr(layers[-1], "unwrapped", None)
    return layers if bare is None or bare is layers[-1] else [*layers, bare]


def _inside(env: Any) -> Any:
    own = getattr(env, "__dict__", {})
    return next((own[name] for name in ("env", "_env", "scalar") if name in own), None)
