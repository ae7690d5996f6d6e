"""`unity:PATH` and `unity:PORT`: from the name to the environment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from relayrl.config.settings import parse_settings
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.unity.simulator_process import find_executable
from relayrl.envs.unity.unity_settings import UnitySettings, port_of
from relayrl.envs.unity.unity_simulator import Deadlines, UnitySimulator, await_simulator, launch, set_aside
from relayrl.envs.unity.unity_vector import UnityVector
from relayrl.errors import ConfigError


def make(name: str, settings: EnvSettings, options: Mapping[str, Any], *, num_simulators: int) -> UnityVector:
    """`num_simulators` simulators of the executable `name`, or the one that connects to the port that `name` is."""
    own = parse_settings(UnitySettings, dict(options))
    deadlines = Deadlines(settings.start_timeout_s, settings.step_timeout_s)
    port = port_of(name)
    if port is None:
        executable = find_executable(name)
        return UnityVector(
            lambda number: launch(executable, own, number, deadlines),
            UnitySimulator.close,
            num_simulators,
            own,
            settings,
        )
    if num_simulators != 1:
        raise ConfigError(
            f"unity:{name} is one simulator, num_envs says {num_simulators}; leave it out, or name an executable"
        )
    return UnityVector(partial(_awaited, port, own, deadlines), set_aside, 1, own, settings)


def _awaited(port: int, own: UnitySettings, deadlines: Deadlines, number: int) -> UnitySimulator:
    del number
    return await_simulator(port, own, deadlines)
