"""One Unity simulator: started or waited for, greeted, and spoken to until it is closed.

    simulator = launch(executable, settings, 0, deadlines)      on a port of its own
    simulator.greet()                                           wait for it, and shake hands
    simulator.reset()                                           answer with a reset; then
    output = simulator.receive()                                what the agents see, and
    simulator.act(actions)                                      what they do

A simulator that somebody else started cannot be started again by us, so closing it only sets it aside: who asks for its port
next, in this process, goes on with it. It is asked to quit when the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relayrl.envs.unity.behaviors import Behavior, read_behavior
from relayrl.envs.unity.side_channels import SceneStatistics, SideChannels, parameter_messages
from relayrl.envs.unity.simulator_link import PortTakenError, SimulatorGoneError, SimulatorLink
from relayrl.envs.unity.simulator_process import SimulatorProcess
from relayrl.envs.unity.unity_messages import COMMUNICATION_VERSION, OK_STATUS, RESET, STEP, message
from relayrl.envs.unity.unity_settings import UnitySettings
from relayrl.errors import ConfigError

_PORTS_TRIED = 200
_QUIT_S = 5.0
_NEEDED = ("baseRLCapabilities", "hybridActions", "variableLengthObservation", "multiAgentGroups")
_CAPABILITIES = (*_NEEDED, "concatenatedPngObservations", "compressedChannelMapping")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a simulator may take: to connect, and for each exchange."""

    start_s: float
    step_s: float


class UnitySimulator:
    """A simulator that is about to greet; `advice` is for whom it keeps waiting."""

    def __init__(
        self,
        link: SimulatorLink,
        process: SimulatorProcess | None,
        settings: UnitySettings,
        number: int,
        deadlines: Deadlines,
        advice: str = "",
    ) -> None:
        self._link, self._process, self._deadlines, self._advice = link, process, deadlines, advice
        self._settings, self._number, self._has_greeted = settings, number, False
        self._is_answered = False  # and has not sent what came of it
        self.behaviors: dict[str, Behavior] = {}
        """What it has announced so far: each behaviour once, with the first of its agents."""
        self.statistics = SceneStatistics()
        self._channels = SideChannels(self.statistics)

    @property
    def port(self) -> int:
        return self._link.port

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for an answer, as it does between two exchanges."""
        return self._link.is_waited_on

    def greet(self) -> None:
        """Wait until it connects, unless it has, and tell it how to begin; logs of one that fails to are kept."""
        try:
            if not self._has_greeted:
                self._shake_hands(self._settings.seed + self._number, self._settings.num_areas)
                self._has_greeted = True
        except BaseException:
            self.close(failed=True)
            raise
        self._channels.send(self._settings.engine.messages())
        self.set_parameters(self._settings.parameters)

    def serve(self, settings: UnitySettings, deadlines: Deadlines) -> UnitySimulator:
        """The same simulator for another environment."""
        self._settings, self._deadlines = settings, deadlines
        return self

    def set_parameters(self, parameters: Mapping[str, float]) -> None:
        """Send environment parameters with the next answer."""
        self._channels.send(parameter_messages(parameters))

    def reset(self) -> None:
        """Answer with a reset of the scene; what it may still have to say, after an interrupted step, is dropped."""
        if self._is_answered:
            self.receive()
        self._answer(RESET, {})

    def act(self, actions: Mapping[str, Sequence[Any]]) -> None:
        """Answer with the actions of the agents that asked, by behaviour and in the order in which they asked."""
        self._answer(STEP, actions)

    def receive(self) -> Any:
        """The `UnityOutputProto` of the next exchange; `SimulatorGoneError` where none comes in time."""
        return self._receive(self._deadlines.step_s)

    def close(self, *, failed: bool = False) -> None:
        """Have it quit; a process that does not is killed, with its children. Logs of one that failed are kept."""
        self._link.close()
        if self._process is not None:
            self._process.close(0.1 if failed else _QUIT_S, keep_logs=failed)

    def _answer(self, command: int, actions: Mapping[str, Sequence[Any]]) -> None:
        rl_input = message("UnityRLInputProto", command=command, side_channel=self._channels.take_outgoing())
        for behavior, own in actions.items():
            rl_input.agent_actions[behavior].value.extend(own)
        self._link.answer(message("UnityInputProto", rl_input=rl_input))
        self._is_answered = True

    def _receive(self, timeout_s: float) -> Any:
        try:
            received = self._link.receive(timeout_s, self._find_end)
            if received.HasField("header") and received.header.status != OK_STATUS:
                raise SimulatorGoneError("it says that it quits")
        except SimulatorGoneError as error:
            log = (
                f"; {self._process.describe_log()}"
                if self._process is not None
                else self._advice
                if not self._has_greeted
                else ""
            )
            raise SimulatorGoneError(f"the Unity simulator on port {self.port} is gone: {error}{log}") from error
        self._is_answered = False
        output = received.unity_output
        self._channels.receive(output.rl_output.side_channel)
        for parameters in output.rl_initialization_output.brain_parameters:
            infos = output.rl_output.agentInfos
            if parameters.brain_name in infos and infos[parameters.brain_name].value:
                self.behaviors[parameters.brain_name] = read_behavior(parameters, infos[parameters.brain_name].value[0])
        return output

    def _where_to_look(self) -> str:
        if self._process is not None:
            return f"; {self._process.describe_log()}"
        return "" if self._has_greeted else self._advice

    def _find_end(self) -> str | None:
        return None if self._process is None else self._process.find_end()

    def _shake_hands(self, seed: int, num_areas: int) -> None:
        """Who it is, who we are, and an empty message that is answered by the first reset."""
        them = self._receive(self._deadlines.start_s).rl_initialization_output
        version = them.communication_version
        if version != COMMUNICATION_VERSION:
            raise ConfigError(
                f"the simulator on port {self.port} speaks version {version[:40]!r} of ML-Agents' communication protocol, "
                f"RelayRL {COMMUNICATION_VERSION}; build the scene with com.unity.ml-agents 2.0 or newer"
            )
        missing = [name for name in _NEEDED if not getattr(them.capabilities, name)]
        if missing:
            raise ConfigError(
                f"the simulator on port {self.port} lacks {', '.join(missing)}; update com.unity.ml-agents"
            )
        ours = message("UnityRLCapabilitiesProto", **dict.fromkeys(_CAPABILITIES, True))
        greeting = message(
            "UnityRLInitializationInputProto",
            seed=seed % (1 << 31),
            communication_version=COMMUNICATION_VERSION,
            package_version="relayrl",
            capabilities=ours,
            num_areas=num_areas,
        )
        self._link.answer(message("UnityInputProto", rl_initialization_input=greeting))
        self._receive(self._deadlines.start_s)
        logger.info(
            "Unity simulator connected",
            extra={"port": self.port, "scene": them.name[:100], "package": them.package_version[:40]},
        )


def launch(executable: Path, settings: UnitySettings, number: int, deadlines: Deadlines) -> UnitySimulator:
    """Start simulator `number` on the first free port from `base_port` + `number`."""
    link = _free_link(settings, number)
    arguments = [*(["-nographics", "-batchmode"] if settings.no_graphics else []), *settings.args]
    try:
        process = SimulatorProcess(executable, link.port, arguments, settings.log_dir)
    except BaseException:
        link.close()
        raise
    return UnitySimulator(link, process, settings, number, deadlines)


def _free_link(settings: UnitySettings, number: int) -> SimulatorLink:
    first = settings.base_port + number
    last = min(first + _PORTS_TRIED, 65536) - 1
    for port in range(first, last + 1):
        with contextlib.suppress(PortTakenError):
            return SimulatorLink(settings.host, port)
    raise ConfigError(f"no port from {first} to {last} is free on {settings.host}; set environment.options.base_port")


_set_aside: dict[int, UnitySimulator] = {}
"""Simulators that others started, by port, between two environments of this process."""


def await_simulator(port: int, settings: UnitySettings, deadlines: Deadlines) -> UnitySimulator:
    """The simulator that connects to `port`, or has before."""
    known = _set_aside.pop(port, None)
    if known is not None:
        if known.is_waiting:
            return known.serve(settings, deadlines)
        known.close()
    try:
        link = SimulatorLink(settings.host, port)
    except PortTakenError as error:
        raise ConfigError(
            f"unity:{port}: {error}; where it is this run's own, set environment.exclusive=true, so that evaluations play "
            "in the training environment"
        ) from error
    logger.warning("waiting for a Unity simulator; press Play in the editor", extra={"port": port})
    return UnitySimulator(link, None, settings, 0, deadlines, "; press Play in the editor while RelayRL waits")


def set_aside(simulator: UnitySimulator) -> None:
    """Keep a simulator that others started for the next environment on its port; one that has hung up is closed."""
    if not simulator.is_waiting or simulator.port in _set_aside:
        simulator.close()
        return
    if not _set_aside:
        atexit.register(_quit_all)
    _set_aside[simulator.port] = simulator


def _quit_all() -> None:
    while _set_aside:
        _set_aside.popitem()[1].close()
