"""Saving and continuing environments behind wrappers: what the innermost one holds, and what each wrapper remembers.

Known are Gymnasium's classic control, games of ale-py, and every `StatefulEnvironment`; of wrappers, those below and RelayRL's
own. An environment with anything else around it cannot be saved: a run then begins new episodes when it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import wrappers

from relayrl.data.trees import Array, leaves, unflatten
from relayrl.envs.adapters.classic_control_state import ClassicControlState, is_classic_control, wrappers_of
from relayrl.envs.environment_contract import StatefulEnvironment
from relayrl.envs.generator_words import generator_from_words, generator_to_words
from relayrl.envs.vector.saved_buffers import under
from relayrl.envs.wrappers.agents_wrapper import AgentsWrapper
from relayrl.envs.wrappers.atari_game import AtariGame
from relayrl.envs.wrappers.dropped_keys import KeysDropped
from relayrl.envs.wrappers.group_wrappers import moments_state, set_moments
from relayrl.envs.wrappers.wrapping import GymnasiumView

_NAMES = (
    *(
        "ClipAction",
        "ClipReward",
        "DtypeObservation",
        "FilterObservation",
        "FlattenObservation",
        "GrayscaleObservation",
    ),
    *("MaxAndSkipObservation", "OrderEnforcing", "RepeatAction", "RescaleAction", "RescaleObservation"),
    *("ReshapeObservation", "ResizeObservation"),
)
_REMEMBER_NOTHING = (KeysDropped, *(getattr(wrappers, name) for name in _NAMES if hasattr(wrappers, name)))
"""Wrappers whose results depend on the present step alone; older versions of Gymnasium lack some."""


class _Memory(NamedTuple):
    """How what a wrapper remembers is read and set."""

    read: Callable[[Any], Mapping[str, Any]]
    write: Callable[[Any, Mapping[str, Array]], None]


def state_port(env: Any) -> StatefulEnvironment | None:
    """Where the state of `env` can be read and set: itself, a port to it, or None when it cannot be saved."""
    if isinstance(env, StatefulEnvironment):
        return env
    if isinstance(env, AgentsWrapper):
        inner = state_port(env.env)
        return None if inner is None else _AgentsState(env, inner)
    if not isinstance(env, gymnasium.Env):
        return None
    around, bare = wrappers_of(env), _bare_port(env)
    known = all(type(each) in _REMEMBER_NOTHING or type(each) in _MEMORIES for each in around)
    return _WrappedState(env, around, bare) if bare is not None and known else None


def _bare_port(env: gymnasium.Env[Any, Any]) -> StatefulEnvironment | None:
    if is_classic_control(env):
        return ClassicControlState(env)
    inner: Any = env
    while isinstance(inner, gymnasium.Wrapper):
        inner = inner.env
    if isinstance(inner, GymnasiumView):
        return inner.scalar if isinstance(inner.scalar, StatefulEnvironment) else None
    bare = type(inner)
    return _GameState(inner) if (bare.__module__, bare.__name__) == ("ale_py.env", "AtariEnv") else None


class _WrappedState(StatefulEnvironment):
    """A `gymnasium.Env` in wrappers."""

    def __init__(self, env: Any, around: list[Any], bare: StatefulEnvironment) -> None:
        self._env, self._bare = env, bare
        # Classic control saves its time limits itself.
        skipped = wrappers.TimeLimit if isinstance(bare, ClassicControlState) else ()
        self._around = [
            (f"wrapper{i}/", each, _MEMORIES[type(each)])
            for i, each in enumerate(reversed(around))
            if type(each) in _MEMORIES and not isinstance(each, skipped)
        ]

    def get_state(self) -> dict[str, Array]:
        state = dict(self._bare.get_state())
        for prefix, wrapper, memory in self._around:
            state |= {prefix + name: np.array(value) for name, value in memory.read(wrapper).items()}
        return state

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._env.reset()
        own = tuple(prefix for prefix, _, _ in self._around)
        self._bare.set_state({name: array for name, array in state.items() if not name.startswith(own)})
        for prefix, wrapper, memory in self._around:
            memory.write(wrapper, under(prefix, state))


class _AgentsState(StatefulEnvironment):
    """An environment with several agents behind a wrapper."""

    def __init__(self, env: AgentsWrapper, inner: StatefulEnvironment) -> None:
        self._env, self._inner = env, inner

    def get_state(self) -> dict[str, Array]:
        own = {f"wrapper/{name}": array for name, array in self._env.get_own_state().items()}
        return own | {f"env/{name}": array for name, array in self._inner.get_state().items()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._inner.set_state(under("env/", state))
        self._env.set_own_state(under("wrapper/", state))


class _GameState(StatefulEnvironment):
    """A game of ale-py: the console's memory and both generators."""

    def __init__(self, game: Any) -> None:
        self._game = game

    def get_state(self) -> dict[str, Array]:
        console = self._game.ale.cloneState(include_rng=True).__getstate__()
        return {
            "console": np.frombuffer(console, np.uint8).copy(),
            "random": generator_to_words(self._game.np_random),
        }

    def set_state(self, state: Mapping[str, Array]) -> None:
        from ale_py import ALEState

        console: Any = ALEState.__new__(ALEState)
        console.__setstate__(state["console"].tobytes())
        self._game.ale.restoreState(console)
        self._game.np_random = generator_from_words(state["random"])


def _read_frames(stack: Any) -> dict[str, Any]:
    frames = [[leaf for _, leaf in leaves(frame)] for frame in stack.obs_queue]
    return {f"frames{i}": np.stack(parts) for i, parts in enumerate(zip(*frames, strict=True))}


def _write_frames(stack: Any, state: Mapping[str, Array]) -> None:
    parts = [state[f"frames{i}"] for i in range(len(state))]
    space = stack.env.observation_space
    for k in range(stack.stack_size):
        stack.obs_queue.append(unflatten(space, iter([part[k].copy() for part in parts])))


def _moments(name: str, *others: str) -> _Memory:
    """Of a wrapper with running moments under `name`, and arrays under `others`."""

    def read(wrapper: Any) -> dict[str, Any]:
        return moments_state(getattr(wrapper, name)) | {each: getattr(wrapper, each) for each in others}

    def write(wrapper: Any, state: Mapping[str, Array]) -> None:
        set_moments(getattr(wrapper, name), state)
        for each in others:
            setattr(wrapper, each, state[each].copy())

    return _Memory(read, write)


def _number(name: str) -> _Memory:
    return _Memory(
        lambda wrapper: {name: getattr(wrapper, name) or 0},
        lambda wrapper, state: setattr(wrapper, name, int(state[name])),
    )


_MEMORIES: dict[type[Any], _Memory] = {
    AtariGame: _Memory(AtariGame.get_own_state, AtariGame.set_own_state),
    wrappers.FrameStackObservation: _Memory(_read_frames, _write_frames),
    wrappers.NormalizeObservation: _moments("obs_rms"),
    wrappers.NormalizeReward: _moments("return_rms", "discounted_reward"),
    wrappers.TimeLimit: _number("_elapsed_steps"),
}
