"""A process that plays Unity's part: a gRPC client that speaks ML-Agents' protocol, in small scenes of known numbers.

python fake_simulator.py --mlagents-port 5005 -logFile Player.log --scene walk --agents 4
"""

# ruff: noqa: RUF012
from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import time
import uuid
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from wire import decode, encode, message, packed_floats, packed_ints

PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
ENGINE = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
STATISTICS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
UNKNOWN = uuid.UUID("00000000-0000-0000-0000-00000000beef")
ALL = dict.fromkeys(range(1, 8), True)


# --- messages -----------------------------------------------------------------------------------------------------------------


def vector(
    values: Any, name: str = "vector", shape: list[int] | None = None, properties: list[int] | None = None
) -> bytes:
    numbers = [float(v) for v in np.ravel(values)]
    fields: dict[int, Any] = {1: shape or [len(numbers)], 6: properties or [1], 8: name}
    return encode(fields) + message(4, encode({1: numbers}))


def picture(pngs: bytes, shape: list[int], mapping: list[int], name: str = "camera") -> bytes:
    return encode({1: shape, 2: 1, 3: pngs, 5: mapping, 6: [1, 2, 2], 8: name})


def png(pixels: np.ndarray) -> bytes:
    """An [H, W, 3] image as Unity writes it: 8 bits, RGB."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    return png_of(width, height, zlib.compress(rows))


def png_of(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def channel_message(channel: uuid.UUID, payload: bytes) -> bytes:
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def statistic(name: str, value: float, kind: int) -> bytes:
    return channel_message(STATISTICS, struct.pack("<i", len(name)) + name.encode() + struct.pack("<fi", value, kind))


# --- agents and scenes --------------------------------------------------------------------------------------------------------


class Agent:
    """An object of the scene; its id is that of its present episode."""

    next_id = 0

    def __init__(self, behavior: str, group: int = 0) -> None:
        self.behavior, self.group, self.reward, self.group_reward, self.steps = behavior, group, 0.0, 0.0, 0
        self.action: tuple[list[float], list[int]] = ([], [])
        self.begin()

    def begin(self) -> None:
        self.id, self.steps, self.reward, self.group_reward = Agent.next_id, 0, 0.0, 0.0
        Agent.next_id += 1


class Scene(ABC):
    """What all scenes share: agents put their observations into `out`, ended ones with `done`."""

    specs: dict[str, tuple[int, list[int]]]  # continuous actions and branches of each behaviour

    def __init__(self, options: argparse.Namespace, rng: np.random.Generator) -> None:
        self.options, self.rng, self.time = options, rng, 0
        self.parameters: dict[str, float] = {}
        self.out: dict[str, list[bytes]] = {}
        self.asked: dict[str, list[Agent]] = {}
        self.said = b""

    def put(self, agent: Agent, *, done: bool = False, max_step: bool = False, mask: list[bool] | None = None) -> None:
        observations = self.observe(agent)
        fields: dict[int, Any] = {7: float(agent.reward), 8: done, 9: max_step, 10: agent.id, 11: mask or []}
        fields |= {13: observations, 14: agent.group, 15: float(agent.group_reward)}
        self.out.setdefault(agent.behavior, []).append(encode(fields))
        agent.reward = agent.group_reward = 0.0
        if not done:
            self.asked.setdefault(agent.behavior, []).append(agent)

    def end(self, agent: Agent, *, max_step: bool = False) -> None:
        self.put(agent, done=True, max_step=max_step)
        agent.begin()

    @abstractmethod
    def observe(self, agent: Agent) -> list[bytes]:
        """What an agent sees."""

    @abstractmethod
    def reset(self) -> None:
        """Begin anew."""

    @abstractmethod
    def ask(self) -> None:
        """Let agents ask for decisions, at the beginning of a tick."""

    @abstractmethod
    def act(self) -> None:
        """Let the actions happen, at the end of a tick."""


class Walk(Scene):
    """Agents on a line of 7 places walk to the right end. Walls are masked. 1 for arriving, else -0.02; 20 steps at most."""

    specs = {"Walk?team=0": (0, [3])}

    def reset(self) -> None:
        self.agents = [Agent("Walk?team=0") for _ in range(self.options.agents)]
        for agent in self.agents:
            agent.place = int(self.rng.integers(0, 6))

    def observe(self, agent: Agent) -> list[bytes]:
        return [vector([agent.place / 6.0, 1.0])]

    def ask(self) -> None:
        for agent in self.agents:
            self.put(agent, mask=[agent.place == 0, False, False])

    def act(self) -> None:
        for agent in self.agents:
            agent.place += agent.action[1][0] - 1
            assert 0 <= agent.place <= 6, "a masked action came"
            agent.steps += 1
            arrived = agent.place == 6
            agent.reward += 1.0 if arrived else -0.02
            if arrived or agent.steps == 20:
                self.end(agent, max_step=not arrived)
                agent.place = int(self.rng.integers(0, 6))
        self.said += statistic("Walk/Arrived", float(arrived), 0) + statistic("Walk/Steps", 1.0, 2)
        self.said += statistic("Walk/goal", self.parameters.get("goal", -1.0), 1) + channel_message(UNKNOWN, b"hello")


class Stagger(Walk):
    """The same, but agent k decides when the tick plus k is even, and walks on the tick after: it gets rewards, and ends, while
    it has not asked."""

    def reset(self) -> None:
        self.time = 0
        super().reset()

    def ask(self) -> None:
        for k, agent in enumerate(self.agents):
            if (self.time + k) % 2 == 0:
                self.put(agent, mask=[agent.place == 0, False, False])

    def act(self) -> None:
        self.time += 1
        self.agents, everybody = [agent for k, agent in enumerate(self.agents) if (self.time + k) % 2 == 0], self.agents
        if self.time > 1:
            super().act()
        self.agents = everybody


class Reach(Scene):
    """One number to be driven to 0 by a continuous action: reward -|x|, cut after 10 steps."""

    specs = {"Reach?team=0": (1, [])}

    def reset(self) -> None:
        self.agents = [Agent("Reach?team=0") for _ in range(self.options.agents)]
        for agent in self.agents:
            agent.x = float(self.rng.uniform(-1, 1))

    def observe(self, agent: Agent) -> list[bytes]:
        return [vector([agent.x])]

    def ask(self) -> None:
        for agent in self.agents:
            self.put(agent)

    def act(self) -> None:
        for agent in self.agents:
            agent.x = float(np.clip(agent.x + 0.5 * agent.action[0][0], -1, 1))
            agent.reward -= abs(agent.x)
            agent.steps += 1
            if agent.steps == 10:
                self.end(agent, max_step=True)
                agent.x = float(self.rng.uniform(-1, 1))


class Two(Scene):
    """Two areas with a runner, which decides on every tick, and an aimer, who does on every third; both end after 6 ticks."""

    specs = {"Runner?team=0": (0, [2, 3]), "Aimer?team=0": (2, [])}

    def reset(self) -> None:
        self.time = 0
        self.runners = [Agent("Runner?team=0") for _ in range(2)]
        self.aimers = [Agent("Aimer?team=0") for _ in range(2)]

    def observe(self, agent: Agent) -> list[bytes]:
        return [vector([agent.steps, 1.0] if "Runner" in agent.behavior else [agent.steps])]

    def ask(self) -> None:
        for agent in self.runners:
            self.put(agent)
        if self.time % 3 == 0:
            for agent in self.aimers:
                self.put(agent)

    def act(self) -> None:
        self.time += 1
        for agent in (*self.runners, *self.aimers):
            agent.steps += 1
            agent.reward += 1.0
            if agent.steps == 6:
                self.end(agent)


class Duel(Scene):
    """Two areas with a group of two against a group of two; who does 1 takes 1 from the other group. Games of 3 ticks."""

    specs = {"Duel?team=0": (0, [2]), "Duel?team=1": (0, [2])}

    def reset(self) -> None:
        self.areas = [[[Agent(f"Duel?team={t}", 1 + 2 * area + t) for _ in (0, 1)] for t in (0, 1)] for area in (0, 1)]

    def observe(self, agent: Agent) -> list[bytes]:
        return [vector([agent.steps])]

    def ask(self) -> None:
        for agent in (agent for area in self.areas for team in area for agent in team):
            self.put(agent)

    def act(self) -> None:
        for area in self.areas:
            done = [sum(agent.action[1][0] for agent in team) for team in area]
            for t, team in enumerate(area):
                for agent in team:
                    agent.steps += 1
                    agent.group_reward += done[t] - done[1 - t]
                    if agent.steps == 3:
                        self.end(agent)


class Sensors(Scene):
    """One agent with every kind of sensor and both kinds of actions; rewards are what it did."""

    specs = {"Sensors?team=0": (2, [3, 2])}

    def reset(self) -> None:
        self.agent = Agent("Sensors?team=0")

    def observe(self, agent: Agent) -> list[bytes]:
        t = agent.steps
        grey = [np.full((20, 24, 3), 10 * t + k, np.uint8) for k in range(2)]
        colours = np.zeros((16, 16, 3), np.uint8)
        colours[2, 3] = (t, 100, 200)
        rows = [[1.0 + t, 2.0]] * min(t, 3)
        padded = rows + [[0.0, 0.0]] * (3 - len(rows))
        return [
            vector([t, -t]),
            picture(png(grey[0]) + png(grey[1]), [2, 20, 24], [0, 0, 0, 1, 1, 1], "stack"),
            picture(png(colours), [3, 16, 16], [], "colour"),
            vector(padded, "buffer", [3, 2], [4, 1]),
            vector(np.arange(8) + t, "grid", [2, 2, 2], [1, 2, 2]),
        ]

    def ask(self) -> None:
        self.put(self.agent, mask=[True, False, False, self.agent.steps % 2 == 0, False])

    def act(self) -> None:
        numbers, choices = self.agent.action
        assert choices[0] != 0, "a masked action came"
        self.agent.reward += 100 * numbers[0] + 10 * choices[0] + choices[1]
        self.agent.steps += 1
        if self.agent.steps == 5:
            self.end(self.agent, max_step=True)


class Team(Scene):
    """Groups of three. One of them, who sees it, can open the door for the others and dies; two ticks later the group gets
    1. Without that it gets 0.2 in the end. Whoever else tries dies in vain."""

    specs = {"Team?team=0": (0, [2])}

    def reset(self) -> None:
        self.groups = [[Agent("Team?team=0", group + 1) for _ in range(3)] for group in range(self.options.agents)]
        self.alive, self.chosen = [list(group) for group in self.groups], [0] * len(self.groups)
        for number in range(len(self.groups)):
            self.begin(number)

    def begin(self, number: int) -> None:
        self.alive[number] = list(self.groups[number])
        self.chosen[number] = int(self.rng.integers(3))
        for agent in self.groups[number]:
            agent.opened = agent.steps = 0

    def observe(self, agent: Agent) -> list[bytes]:
        number = agent.group - 1
        is_chosen = self.groups[number][self.chosen[number]] is agent
        return [vector([float(is_chosen), agent.steps / 3.0])]

    def ask(self) -> None:
        for group in self.alive:
            for agent in group:
                self.put(agent)

    def act(self) -> None:
        for number, group in enumerate(self.groups):
            chosen, alive = group[self.chosen[number]], self.alive[number]
            first = all(agent.steps == 0 for agent in alive)
            for agent in list(alive):
                agent.steps += 1
                if first and agent.action[1][0] == 1:
                    alive.remove(agent)
                    agent.was_chosen = agent is chosen
                    if agent.was_chosen:
                        for other in group:
                            other.opened = 1
                    opened = agent.opened
                    self.end(agent)
                    agent.opened = opened
            if not alive:
                self.begin(number)
            elif alive[0].steps == 3:
                for agent in alive:
                    agent.group_reward += 1.0 if agent.opened else 0.2
                for agent in alive:
                    self.end(agent)
                self.begin(number)


class Spawn(Scene):
    """One group: a queen, who lives for 8 ticks, and workers that appear at ticks 2 and 4 and die at ticks 5 and 7."""

    specs = {"Queen?team=0": (0, [2]), "Worker?team=0": (0, [2])}

    def reset(self) -> None:
        self.time, self.queen, self.workers = 0, Agent("Queen?team=0", 1), []

    def observe(self, agent: Agent) -> list[bytes]:
        return [vector([self.time])]

    def ask(self) -> None:
        for agent in (self.queen, *self.workers):
            self.put(agent)

    def act(self) -> None:
        self.time += 1
        self.queen.reward += 1.0
        for agent in self.workers:
            agent.reward += 0.5
        if self.time in (5, 7):
            self.put(self.workers.pop(0), done=True)
        if self.time in (2, 4):
            self.workers.append(Agent("Worker?team=0", 1))
        if self.time == 8:
            for agent in self.workers:
                self.put(agent, done=True)
            self.end(self.queen)
            self.time, self.workers = 0, []


SCENES = {scene.__name__.lower(): scene for scene in (Walk, Stagger, Reach, Two, Duel, Sensors, Team, Spawn)}


# --- the process --------------------------------------------------------------------------------------------------------------


class Simulator:
    def __init__(self, options: argparse.Namespace) -> None:
        import grpc  # here: tests import what is above, and processes that have loaded gRPC fork as it was configured

        self.options, self.num_exchanges, self.gone = options, 0, grpc.RpcError
        limit = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        channel = grpc.insecure_channel(f"localhost:{options.port}", options=limit)
        self.exchange = channel.unary_unary("/communicator_objects.UnityToExternalProto/Exchange")

    def send(self, unity_output: bytes | None) -> dict[int, list[Any]]:
        """One exchange; the fields of `UnityInputProto`. Ends the process where the trainer has gone, as Unity does."""
        self.num_exchanges += 1
        self.misbehave()
        header = message(1, encode({1: 200}))
        try:
            request = header + (message(2, unity_output) if unity_output is not None else b"")
            answer = self.exchange(request, timeout=120, wait_for_ready=self.options.wait and self.num_exchanges == 1)
        except self.gone as error:
            self.log(f"trainer gone: {error.code()}")
            sys.exit(0)
        fields = decode(answer)
        if decode(fields[1][0])[1] != [200]:
            self.log("told to quit")
            sys.exit(0)
        return decode(fields[3][0])

    def log(self, text: str) -> None:
        if self.options.log:
            with Path(self.options.log).open("a") as file:
                file.write(text + "\n")

    def misbehave(self) -> None:
        options = self.options
        if self.num_exchanges == options.crash_after and not (options.once and Path(options.once).exists()):
            if options.once:
                Path(options.once).touch()
            self.log("segmentation fault in the physics")
            os._exit(7)
        if self.num_exchanges == options.stall_after:
            time.sleep(100)

    def run(self) -> None:
        version = self.options.version
        init = encode({1: "fake", 2: version, 7: "3.0.0", 8: encode(ALL)})
        greeting = decode(self.send(message(2, init))[2][0])
        self.log(f"seed {greeting.get(1, [0])[0]} areas {greeting.get(5, [0])[0]}")
        scene = SCENES[self.options.scene](self.options, np.random.default_rng(greeting.get(1, [0])[0]))
        announced: set[str] = set()
        rl_input = decode(self.send(None)[1][0])
        while True:
            self.take_in(scene, rl_input)
            while True:
                scene.ask()
                if scene.out:
                    break
                scene.act()
            new = [name for name in scene.specs if name in scene.out and name not in announced]
            announced |= set(new)
            rl_input = decode(self.send(self.output(scene, new))[1][0])

    def take_in(self, scene: Scene, rl_input: dict[int, list[Any]]) -> None:
        self.hear(scene, rl_input.get(5, [b""])[0])
        asked, scene.asked, scene.out = scene.asked, {}, {}
        if rl_input.get(4, [0])[0] == 1:
            scene.reset()
            return
        for entry in rl_input.get(1, []):
            pair = decode(entry)
            agents, actions = asked.pop(pair[1][0].decode()), decode(pair[2][0])[1]
            assert len(agents) == len(actions), "as many actions as agents that asked"
            for agent, action in zip(agents, actions, strict=True):
                fields = decode(action)
                agent.action = packed_floats(fields.get(6, [])), packed_ints(fields.get(7, []))
                continuous, branches = scene.specs[agent.behavior]
                assert (len(agent.action[0]), len(agent.action[1])) == (continuous, len(branches))
        assert not any(asked.values()), "an action for everybody who asked"
        scene.act()

    def hear(self, scene: Scene, block: bytes) -> None:
        at = 0
        while at < len(block):
            channel, (length,) = uuid.UUID(bytes_le=block[at : at + 16]), struct.unpack_from("<i", block, at + 16)
            payload, at = block[at + 20 : at + 20 + length], at + 20 + length
            if channel == PARAMETERS:
                (size,) = struct.unpack_from("<i", payload)
                kind, value = struct.unpack_from("<if", payload, 4 + size)
                scene.parameters[payload[4 : 4 + size].decode()] = value
                self.log(f"parameter {payload[4 : 4 + size].decode()} {kind} {value:g}")
            elif channel == ENGINE:
                self.log(f"engine {payload.hex()}")

    def output(self, scene: Scene, new: list[str]) -> bytes:
        said, scene.said = scene.said, b""
        entries = []
        for name, infos in scene.out.items():
            infos = self.spoil(infos)
            entries.append(encode({1: name}) + message(2, b"".join(message(1, info) for info in infos)))
        if self.options.evil == "behavior" and self.num_exchanges > 20:
            entries.append(encode({1: "Ghost?team=0"}) + message(2, message(1, encode({10: 1}))))
        if self.options.evil == "side_channel" and self.num_exchanges > 20:
            said = said[:-3]
        output = message(1, b"".join(message(2, entry) for entry in entries) + encode({3: said}))
        if new:
            brains = b"".join(message(5, self.brain(name, *scene.specs[name])) for name in new)
            output += message(2, brains)
        return output

    def brain(self, name: str, continuous: int, branches: list[int]) -> bytes:
        return encode({7: name, 8: True}) + message(9, encode({1: continuous, 2: len(branches), 3: branches}))

    def spoil(self, infos: list[bytes]) -> list[bytes]:
        evil = self.options.evil
        if evil is None or self.num_exchanges <= 20:
            return infos
        rest, last = infos[:-1], infos[-1]  # who asks comes behind who ended
        lies = {
            "nan": encode({10: decode(last)[10][0]}) + message(13, vector([float("nan"), 1.0])),
            "reward": last + encode({7: float("inf")}),
        }
        if evil == "twice":
            return [*infos, last]
        if evil == "crowd":
            return infos + [encode({10: 900 + k}) + message(13, vector([0.0, 1.0])) for k in range(3)]
        return [*rest, lies.get(evil, last)]


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--mlagents-port", dest="port", type=int, required=True)
    parser.add_argument("-logFile", dest="log")
    parser.add_argument("-nographics", action="store_true")
    parser.add_argument("-batchmode", action="store_true")
    parser.add_argument("--scene", default="walk", choices=SCENES)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--version", default="1.5.0")
    parser.add_argument("--crash-after", type=int)
    parser.add_argument("--once")
    parser.add_argument("--stall-after", type=int)
    parser.add_argument("--child", help="start a child, and write its process id into this file")
    parser.add_argument("--pid", help="write the process id into this file")
    parser.add_argument("--evil")
    parser.add_argument("--wait", action="store_true", help="for a trainer that is not there yet")
    options = parser.parse_args()
    if options.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
        Path(options.child).write_text(str(child.pid))
    if options.pid:
        Path(options.pid).write_text(str(os.getpid()))
    Simulator(options).run()


if __name__ == "__main__":
    main()
