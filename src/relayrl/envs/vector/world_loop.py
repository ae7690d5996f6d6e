"""How a slice of worlds is stepped one after the other, whatever kind they are and whichever process runs them.

A loop owns its worlds and writes what they give into `WorldBuffers`. It reports failures and goes on with the other
worlds; what a failure means is decided by the vector environment (`vectorise`). The two kinds are `scalar_loop` and
`joint_loop`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, leaf_dtype
from relayrl.envs.adapters.classic_control_state import state_port
from relayrl.envs.environment_contract import StatefulEnvironment
from relayrl.envs.environment_settings import ObservationCheck
from relayrl.envs.failures import WorldFailedError, WorldFailure, failure_set_aside
from relayrl.envs.vector.result_check import ResultChecker
from relayrl.envs.vector.world_buffers import NO_SEED, WorldBuffers, WorldLayout
from relayrl.errors import EnvError

World = TypeVar("World")
WorldState: TypeAlias = Mapping[str, Array]
"""One world's state as named arrays."""


class WorldRunner(ABC):
    """Worlds that write into buffers: a loop in this process, or a pool of workers."""

    layout: WorldLayout
    buffers: WorldBuffers
    stateful: bool

    @property
    @abstractmethod
    def num_worlds(self) -> int: ...

    @abstractmethod
    def step(self) -> list[WorldFailure]:
        """Advance every world with the actions in the buffers; rows of failed worlds are left undefined."""

    @abstractmethod
    def reset_selected(self) -> list[WorldFailure]:
        """Begin an episode in the selected worlds."""

    @abstractmethod
    def restart_selected(self) -> list[WorldFailure]:
        """Build the selected worlds anew and begin an episode in them."""

    @property
    def infos(self) -> Sequence[Mapping[str, Any]]:
        """What the worlds said beside their results in the last step, where they run in this process."""
        return ()

    @abstractmethod
    def get_state(self) -> list[WorldState]:
        """Every world's own state; only of stateful worlds."""

    @abstractmethod
    def set_state(self, states: Sequence[WorldState]) -> None:
        """Put every world into the state that `get_state` gave; the buffers hold what the worlds showed last already."""

    @abstractmethod
    def close(self) -> None:
        """Release the worlds; may be called again. `WorldFailedError` where one cannot be closed."""


class WorldLoop(WorldRunner, Generic[World]):
    """What the loops over scalar and over multi-agent worlds share."""

    def __init__(self, build: Callable[[], World], worlds: Sequence[World], layout: WorldLayout) -> None:
        self._build = build
        self._worlds = list(worlds)
        self._lanes_ended = False  # in the step being made
        self.layout = layout
        self.stateful = all(state_port(world) is not None for world in worlds)

    @property
    def num_worlds(self) -> int:
        return len(self._worlds)

    def attach(self, buffers: WorldBuffers, check: ObservationCheck) -> None:
        """Use these buffers, one row per world; called once, before the first reset."""
        self.buffers = buffers
        self._checker = ResultChecker(self.layout, buffers, check)
        self._busy = memoryview(buffers.busy_world.data)
        for b, world in enumerate(self._worlds):
            self._install(b, world)

    def step(self) -> list[WorldFailure]:
        for group in self.buffers.groups.values():
            group.clear_results()
        self.buffers.episode_over.fill(False)
        self._lanes_ended = False
        failures = self._step_worlds()
        skip = {failure.world for failure in failures}
        return failures + self._checker.find_failures(lanes_ended=self._lanes_ended, skip=skip)

    def reset_selected(self) -> list[WorldFailure]:
        return self._on_selected(self._begin, "reset()")

    def restart_selected(self) -> list[WorldFailure]:
        return self._on_selected(self._rebuild, "rebuilding it")

    def close(self) -> None:
        worlds, self._worlds = self._worlds, []
        failures = []
        for b, world in enumerate(worlds):
            try:
                self._close_world(world)
            except BaseException as error:  # noqa: BLE001 - the others are closed even where one cannot be
                failures.append(WorldFailure.of_exception(b, error, "close()"))
        if failures:
            raise WorldFailedError(failures[0])

    def get_state(self) -> list[WorldState]:
        return [self._port(world).get_state() for world in self._worlds]

    def set_state(self, states: Sequence[WorldState]) -> None:
        for world, state in zip(self._worlds, states, strict=True):
            self._port(world).set_state(state)

    @abstractmethod
    def _install(self, b: int, world: World) -> None:
        """Make `world` the one in row `b`."""

    @abstractmethod
    def _begin(self, b: int, seed: int | None) -> None:
        """Begin an episode in world `b` and write its first row."""

    @abstractmethod
    def _step_worlds(self) -> list[WorldFailure]: ...

    def _rebuild(self, b: int, seed: int | None) -> None:
        # A world that has just failed may fail to close as well; its successor is what matters.
        with failure_set_aside():
            self._close_world(self._worlds[b])
        self._worlds[b] = self._build()
        self._install(b, self._worlds[b])
        self._begin(b, seed)

    def _on_selected(self, begin: Callable[[int, int | None], None], doing: str) -> list[WorldFailure]:
        buffers = self.buffers
        failures = []
        for b in np.flatnonzero(buffers.selected).tolist():
            self._busy[0] = b
            seed = int(buffers.reset_seed[b])
            try:
                begin(b, None if seed == NO_SEED else seed)
            except BaseException as error:  # noqa: BLE001 - the seam to user code: whatever a world raises is its failure
                failures.append(WorldFailure.of_exception(b, error, doing))
        skip = {failure.world for failure in failures}
        return failures + self._checker.find_failures(lanes_ended=False, skip=skip)

    def _port(self, world: World) -> StatefulEnvironment:
        port = state_port(world)
        if port is None:
            raise EnvError("these worlds cannot be saved")
        return port

    def _close_world(self, world: Any) -> None:
        world.close()


def verify_observation(observation: Any, space: Space, path: str = "") -> None:
    """Raise `EnvError` when an observation has not the structure, shapes and kinds of dtype of its space.

    Rows are written by assignment, which would broadcast or cast such an observation without a word.
    """
    name = f"observation{path}"
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping) or observation.keys() != space.spaces.keys():
            raise EnvError(f"{name} is not a dict with the keys of its space, {sorted(space.spaces)}")
        for key, part in space.spaces.items():
            verify_observation(observation[key], part, f"{path}[{key!r}]")
        return
    if isinstance(space, spaces.Tuple):
        if not isinstance(observation, Sequence) or len(observation) != len(space.spaces):
            raise EnvError(f"{name} is not a tuple of {len(space.spaces)} parts")
        for i, part in enumerate(space.spaces):
            verify_observation(observation[i], part, f"{path}[{i}]")
        return
    array, dtype, shape = np.asarray(observation), leaf_dtype(space), tuple(space.shape or ())
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise EnvError(f"{name} is {array.dtype}{list(array.shape)}, its space is {dtype}{list(shape)}")
