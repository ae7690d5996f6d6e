"""The ways in which an agent acts and records, for one contract suite over all of them.

A mode is a context manager: given a directory, it yields a builder that lacks nothing but a number of actors, and a function
that gives the trajectories which have become durable where they belong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from remote_parts import QUIET, cartpole_server

import relayrl
from relayrl.servers.inference.model_store import ModelStore
from waiting import wait_until


@dataclass(frozen=True)
class AgentMode:
    builder: relayrl.AgentBuilder
    stored: Callable[[], list]
    publish: Callable[[relayrl.RelayRLAgent], None]
    """Make a newer policy the newest."""


def _read(url: str) -> list:
    with relayrl.open_source(url) as source:
        return list(source)


@contextlib.contextmanager
def in_process(directory: Path) -> Iterator[AgentMode]:
    """A file's policy, and a sink."""
    settings = {**QUIET, "trainer.time_horizon": 8}
    run = relayrl.train("CartPole-v1", steps=64, run_dir=directory / "trained", settings=settings, progress=False)
    (model,) = run.directory.models()
    url = f"arrow:{directory / 'kept'}"
    builder = relayrl.AgentBuilder().default_model(model).sink(url)
    yield AgentMode(builder, lambda: _read(url), lambda agent: agent.update_model(model, version=1_000) and None)


@contextlib.contextmanager
def online(directory: Path) -> Iterator[AgentMode]:
    """A training server's policy, inference here, trajectories there."""
    with cartpole_server(directory, steps=1_000_000, settings={"trainer.time_horizon": 8}) as server:
        builder = relayrl.AgentBuilder().server(server.address, spool=directory / "spool")
        url = f"arrow:{server.run_dir / 'journal'}"
        yield AgentMode(builder, lambda: _read(url), lambda agent: _play_until_newer(agent, server))


def _play_until_newer(agent, server) -> None:
    """Send as much as an update needs."""
    import numpy as np

    ids, version = agent.get_actor_ids(), server.metrics.version.value
    for _ in range(200):
        for _ in range(8):
            agent.request_action(ids, np.zeros((len(ids), 4), np.float32), reward=0.0)
        agent.flag_last_action(ids, reward=0.0)
        agent.flush()
        if server.metrics.version.value > version:
            return
    raise AssertionError("no update")


@contextlib.contextmanager
def _served(directory: Path, where: str) -> Iterator[AgentMode]:
    """An inference server's policy, and a sink."""
    settings = {**QUIET, "trainer.time_horizon": 8}
    run = relayrl.train("CartPole-v1", steps=64, run_dir=directory / "trained", settings=settings, progress=False)
    (model,) = run.directory.models()
    url = f"arrow:{directory / 'kept'}"
    with relayrl.InferenceServer("tcp://127.0.0.1:0", [model], store=directory / "store") as server:
        builder = relayrl.AgentBuilder().inference(server.address, where, timeout_s=60.0).sink(url)
        yield AgentMode(builder, lambda: _read(url), lambda agent: _promote_newer(agent, model, directory / "store"))


def _promote_newer(agent, model: Path, store: Path) -> None:
    """The same policy as a newer version, deployed by whoever may write to the store."""
    import onnx

    newer = onnx.load(model)
    strings = {entry.key: entry.value for entry in newer.metadata_props} | {"relayrl.policy_version": "1000"}
    onnx.helper.set_model_props(newer, strings)
    opened = ModelStore(store)
    group, version, _ = opened.add(newer.SerializeToString(), "a newer model")
    opened.promote(group, version, by="test")
    wait_until(lambda: set(agent.get_model_version().values()) == {1000})


MODES = {
    "in-process": in_process,
    "online": online,
    "inference server": partial(_served, where="server"),
    "inference server's models here": partial(_served, where="client"),
    "inference server or here": partial(_served, where="client_fallback"),
    "here or inference server": partial(_served, where="server_fallback"),
}
