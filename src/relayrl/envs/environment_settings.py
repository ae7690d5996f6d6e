"""How environments are run: how many, where, and what happens when one misbehaves."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from relayrl.config.settings import Settings, parse_settings
from relayrl.envs.parameters.parameter_settings import PARAMETER_SCHEMA, Delivery, ParameterSettings, parameter_of


class ObservationCheck(Enum):
    """What is checked of every observation."""

    OFF = "off"
    FINITE = "finite"
    SPACE = "space"


class FailurePolicy(Enum):
    """What happens when an environment raises, hangs or dies."""

    RAISE = "raise"
    RESTART = "restart"


class VectorChoice(Enum):
    """Which vector implementation is run, where an environment comes with one of its own."""

    AUTO = "auto"
    OWN = "own"


AROUND = ("wrappers", "max_episode_steps", "ignore_keys", "flatten")
"""Settings of what is put around an environment: they decide what a policy sees."""

SHOWN = ("options", "sharing", *AROUND)
"""Settings that actors of one run must have alike."""


class EnvSettings(Settings):
    """How the environments of one run are made and stepped."""

    num_envs: int = Field(8, ge=1, le=1 << 20, description="environments stepped together")
    workers: int = Field(0, ge=0, le=4096, description="worker processes; 0 steps in this process")
    vector: VectorChoice = Field(
        VectorChoice.AUTO,
        description="auto: an environment's own vector implementation only where it is known to be the same environment; "
        "own: always, also where it differs; needs workers 0",
    )
    observation_check: ObservationCheck = Field(
        ObservationCheck.FINITE, description="off; finite: no NaN or infinity; space: inside the declared space as well"
    )
    on_failure: FailurePolicy = Field(
        FailurePolicy.RAISE, description="raise, or restart the environment and void the step that failed"
    )
    max_restarts_per_minute: int = Field(10, ge=1, description="above this rate a restart becomes an error")
    step_timeout_s: float = Field(60.0, gt=0, description="deadline of one step in a worker")
    start_timeout_s: float = Field(120.0, gt=0, description="deadline for a worker to build its environments")
    sharing: str | dict[str, str] = Field(
        "shared", description="shared: agents with equal spaces share a policy; separate: none do; or agent: policy"
    )
    reward_weights: tuple[float, ...] | None = Field(
        None,
        description="weights by which the numbers of a vector reward are summed, one for each; null: rewards are numbers",
    )
    exclusive: bool = Field(
        False,
        description="one set of environments at a time, as for a simulator with one licence or port: evaluations play in "
        "the training environments, which begin new episodes afterwards where their state cannot be saved",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="keyword arguments for the environment itself")
    parameters: dict[str, Annotated[ParameterSettings, WithJsonSchema(PARAMETER_SCHEMA)]] = Field(
        default_factory=dict,
        description="what episodes begin with, by name: a number, a sampler, or a curriculum of lessons; "
        "`environment_parameters` of the file is the same",
    )
    parameters_through: Delivery = Field(
        Delivery.AUTO,
        description="how parameters reach the environment: set_parameters (a method), reset_options (`reset(options=…)`), "
        "constructor (it is built anew); auto: set_parameters where there is one, else constructor",
    )
    wrappers: list[dict[str, dict[str, Any]]] = Field(
        default_factory=list,
        description="wrappers around the environment, from the inside outwards, each with its keyword arguments: of "
        "gymnasium.wrappers by name, any as module:callable, or a stack (atari, minigrid, carracing)",
    )
    max_episode_steps: int | None = Field(
        None, ge=1, description="an episode is truncated after so many steps; none: as the environment says"
    )
    ignore_keys: list[str] = Field(
        default_factory=list, description="keys of Dict observations that are dropped; a.b is key b within a"
    )
    flatten: bool = Field(
        False, description="observations become one vector, as by gymnasium.spaces.flatten, behind all wrappers"
    )

    @property
    def wrapper_names(self) -> list[str]:
        """Names of the wrappers, from the inside outwards."""
        return [name for each in self.wrappers for name in each]

    def around(self) -> dict[str, Any]:
        """What is put around the environment, where anything is: what a model file says of it."""
        plain = type(self)()
        return {name: own for name in AROUND if (own := getattr(self, name)) != getattr(plain, name)}

    @field_validator("wrappers", mode="before")
    @classmethod
    def _plain_names(cls, value: Any) -> Any:
        """A name alone is a wrapper without arguments."""
        if not isinstance(value, list | tuple):
            raise ValueError("give a list of wrappers, as in [{FrameStackObservation: {stack_size: 4}}]")
        entries = [{each: {}} if isinstance(each, str) else each for each in value]
        for each in entries:
            if not isinstance(each, dict) or len(each) != 1:
                raise ValueError("each wrapper is its name, or a mapping of its name to keyword arguments")
        return [{name: options or {} for name, options in each.items()} for each in entries]

    @field_validator("parameters", mode="before")
    @classmethod
    def _as_curricula(cls, value: Any) -> Any:
        return {name: parameter_of(name, own) for name, own in value.items()} if isinstance(value, dict) else value

    @field_validator("sharing")
    @classmethod
    def _known_sharing(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        if isinstance(value, str) and value not in ("shared", "separate"):
            raise ValueError("sharing is 'shared', 'separate', or a mapping of agents to policies")
        return value


class EvaluationBounds(Settings):
    """When an evaluation ends by itself: an environment may never end, a policy may walk in circles."""

    max_episode_steps: int = Field(
        27_000, ge=1, description="an evaluation's episode is cut after so many steps, which the result states"
    )
    timeout_s: float = Field(
        600.0, gt=0, description="an evaluation ends after so many seconds, with what it has; the result states it"
    )

    def bounded(self, max_episode_steps: int | None, timeout_s: float | None) -> EvaluationBounds:
        """The bounds alone, with those that are given in place of these."""
        steps = self.max_episode_steps if max_episode_steps is None else max_episode_steps
        seconds = self.timeout_s if timeout_s is None else timeout_s
        return parse_settings(EvaluationBounds, {"max_episode_steps": steps, "timeout_s": seconds})
