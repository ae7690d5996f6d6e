"""Whether a central critic sees its environment's global state, the observations of all agents, or both."""

from __future__ import annotations

from dataclasses import dataclass

from relayrl.data.trees import Space
from relayrl.errors import ConfigError
from relayrl.models.network_settings import CriticInput


@dataclass(frozen=True, slots=True)
class StateOffer:
    """A global state that an environment gives; `repeats_observations` where it is nothing but those, side by side."""

    space: Space
    repeats_observations: bool = False


@dataclass(frozen=True, slots=True)
class CriticSight:
    """What a central critic sees; at least one of both."""

    observations: bool
    state: bool


def critic_sight(choice: CriticInput, offer: StateOffer | None) -> CriticSight:
    """What `choice` means where `offer` is what the environment gives.

    A state that repeats the observations would only be kept twice, so `auto` takes the observations then: the same numbers.
    """
    if choice is CriticInput.AUTO:
        sees_state = offer is not None and not offer.repeats_observations
        return CriticSight(observations=not sees_state, state=sees_state)
    sight = CriticSight(
        observations=choice is not CriticInput.STATE, state=choice is not CriticInput.JOINT_OBSERVATIONS
    )
    if sight.state and offer is None:
        raise ConfigError(
            f"critic_input is {choice.value}, and there is no global state: the environment offers none, or no state_space was "
            "given; use joint_observations"
        )
    return sight
