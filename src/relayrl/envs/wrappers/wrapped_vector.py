"""A vector environment behind wrappers that see all of its lanes at once (`group_wrappers`, `frame_stack`).

Everything else is the environment's own: ids, seeds, episodes, masks, states. Wrappers of observations apply to each group of
agents. Which wrappers have such a form is said in `BATCHED`; of all others there is one for each environment (`wrapping`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import (
    AgentGroup,
    GroupObservation,
    GroupStep,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    actions_by_group,
)
from relayrl.envs.vector.saved_buffers import under
from relayrl.envs.vector.vector_proxy import VectorProxy
from relayrl.envs.wrappers.dropped_keys import DropKeys
from relayrl.envs.wrappers.frame_stack import PADDINGS, FrameStack
from relayrl.envs.wrappers.group_wrappers import (
    ClipReward,
    Flatten,
    Grayscale,
    GroupWrapper,
    NormalizeObservation,
    NormalizeReward,
    Resize,
)
from relayrl.envs.wrappers.wrapper_names import GYMNASIUM, WrapperSpec
from relayrl.errors import ConfigError

FLATTEN = f"{GYMNASIUM}:FlattenObservation"
DROP_KEYS = "ignore_keys"
BATCHED: dict[str, Callable[..., GroupWrapper]] = {
    f"{GYMNASIUM}:ClipReward": ClipReward,
    FLATTEN: Flatten,
    f"{GYMNASIUM}:FrameStackObservation": FrameStack,
    f"{GYMNASIUM}:GrayscaleObservation": Grayscale,
    f"{GYMNASIUM}:NormalizeObservation": NormalizeObservation,
    f"{GYMNASIUM}:NormalizeReward": NormalizeReward,
    f"{GYMNASIUM}:ResizeObservation": Resize,
    DROP_KEYS: DropKeys,
}


def split(specs: Sequence[WrapperSpec]) -> tuple[tuple[WrapperSpec, ...], tuple[WrapperSpec, ...]]:
    """Wrappers of each environment, and the outermost ones, which are applied to all environments at once."""
    count = len(specs)
    while count and _is_batched(specs[count - 1]):
        count -= 1
    return tuple(specs[:count]), tuple(specs[count:])


def _is_batched(spec: WrapperSpec) -> bool:
    # Any other padding is an observation, which only Gymnasium's own wrapper takes.
    return spec.name in BATCHED and spec.options.get("padding_type", "reset") in PADDINGS


def wrapped(env: VectorEnvironment, specs: Sequence[WrapperSpec]) -> VectorEnvironment:
    """`env`, ready to reset, behind the wrappers; closed where they do not fit."""
    if not specs:
        return env
    if env.device != "cpu":
        env.close()
        raise ConfigError(f"wrappers need arrays of NumPy, the environment is on {env.device}; leave the device out")
    try:
        chains = {name: _chain(group, env.num_envs, specs) for name, group in env.groups.items()}
    except ConfigError:
        env.close()
        raise
    if isinstance(env, StatefulEnvironment):
        return _StatefulWrapped(env, chains, env)
    return _Wrapped(env, chains)


def _chain(group: AgentGroup, num_envs: int, specs: Sequence[WrapperSpec]) -> list[GroupWrapper]:
    chain: list[GroupWrapper] = []
    for spec in specs:
        try:
            chain.append(BATCHED[spec.name](group, num_envs, **spec.options))
        except (TypeError, ValueError) as error:
            name = spec.name.removeprefix(f"{GYMNASIUM}:")
            raise ConfigError(f"wrapper {name} cannot be applied: {' '.join(str(error).split())}") from error
        group = replace(group, observation_space=chain[-1].space)
    return chain


class _Wrapped(VectorProxy):
    """Wrappers in front, the environment behind."""

    def __init__(self, env: VectorEnvironment, chains: Mapping[str, list[GroupWrapper]]) -> None:
        super().__init__(env)
        self._chains = chains
        self._changes_rewards = any(each.changes_rewards for chain in chains.values() for each in chain)
        self.groups = {
            name: replace(group, observation_space=chains[name][-1].space) for name, group in env.groups.items()
        }
        self.state_repeats_observations = env.state_repeats_observations and all(
            group.observation_space == env.groups[name].observation_space for name, group in self.groups.items()
        )
        self.has_goals = False  # rewards of other goals would not pass through the wrappers

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        result = self._env.reset(seed=seed, env_ids=env_ids)
        began = np.array([env_ids is None or env_id in env_ids for env_id in self.env_ids])
        return replace(result, groups={name: self._begun(name, seen, began) for name, seen in result.groups.items()})

    def _begun(self, name: str, seen: GroupObservation, began: Array) -> GroupObservation:
        for wrapper in self._chains[name]:
            seen = wrapper.begin(seen, began)
        return seen

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        if isinstance(next(iter(actions), None), uuid.UUID):
            actions = actions_by_group(self, actions)  # type: ignore[arg-type]
        result = self._env.step(actions)
        groups = {}
        for name, got in result.groups.items():
            step: GroupStep = got
            for wrapper in self._chains[name]:
                step = wrapper.advance(step, result.episode_over, result.failed)
            groups[name] = step
        scores = {name: result.counted(name) for name in groups} if self._changes_rewards else result.scores
        return replace(result, groups=groups, scores=scores)

    def build_observation(self) -> VectorReset:
        result: VectorReset = self._env.build_observation()
        groups = dict(result.groups)
        for name, chain in self._chains.items():
            for wrapper in chain:
                groups[name] = wrapper.observe(groups[name])
        return replace(result, groups=groups)


class _StatefulWrapped(_Wrapped, StatefulEnvironment):
    """The same for an environment whose state can be saved; wrappers save what they remember."""

    def __init__(
        self, env: VectorEnvironment, chains: Mapping[str, list[GroupWrapper]], saved: StatefulEnvironment
    ) -> None:
        super().__init__(env, chains)
        self._saved = saved

    def get_state(self) -> dict[str, Array]:
        state = {f"env/{name}": array for name, array in self._saved.get_state().items()}
        for prefix, wrapper in self._named():
            state |= {prefix + name: array for name, array in wrapper.get_state().items()}
        return state

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._saved.set_state(under("env/", state))
        for prefix, wrapper in self._named():
            wrapper.set_state(under(prefix, state))

    def _named(self) -> list[tuple[str, GroupWrapper]]:
        """Every wrapper with the prefix of its state's names: numbers, for groups may have any name."""
        chains = list(self._chains.values())
        return [(f"wrapper{g}.{i}/", each) for g, chain in enumerate(chains) for i, each in enumerate(chain)]
