"""Plays environments for a training server: `relayrl actor`, and `run_remote_actor` behind it.

    take the newest policies ─▶ collect a block ─▶ spool ─▶ wait while the server has enough ─▶ …

Inference happens here, from ONNX files; torch is never loaded. Every block is one message with the trajectories of all groups,
so that agents of one environment arrive together. A block is in the spool before the next step is taken: killed at any moment,
an actor that starts again in the same spool sends what was not acknowledged, once.

Where the server cannot be reached, playing goes on until the spool is full, and then waits; after
`give_up_s` it ends with an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from relayrl.config.settings import Settings, parse_settings
from relayrl.data.arrow.space_json import space_to_json
from relayrl.data.open_rows import RolloutSplitter
from relayrl.data.trajectory_block import TrajectoryBlock
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import SHOWN, EnvSettings
from relayrl.envs.parameters.parameter_settings import require_no_lessons
from relayrl.envs.vector.on_host import on_host
from relayrl.envs.wrappers.wrapper_names import is_installed_wrapper
from relayrl.errors import ConfigError, ServerUnreachableError, SpoolFullError, UntrustedError
from relayrl.runtime.collector import Collector
from relayrl.runtime.remote.model_follower import FollowedActor, ModelFollower
from relayrl.runtime.remote.server_link import LinkSettings, ServerLink, Welcome
from relayrl.runtime.remote.spool import Spool, SpoolSettings, default_spool_base, take_spool
from relayrl.runtime.remote.spool_sink import frames_of
from relayrl.transport.keys import load_client_keys

_log = logging.getLogger("relayrl.runtime.remote.remote_actor")
MAX_BLOCK_STEPS = 256
_TURN_TIMEOUT_S = 5.0
_ROOM_LOOK_S = 0.2


class RemoteActorSettings(Settings):
    """One actor process."""

    environment: EnvSettings = EnvSettings()
    spool: SpoolSettings = SpoolSettings()
    link: LinkSettings = LinkSettings()


@dataclass(slots=True)
class ActorReport:
    """What an actor did."""

    num_env_steps: int = 0
    num_messages: int = 0
    num_rejected: int = 0
    num_left: int = 0
    """Messages that are still in the spool."""
    returns: list[float] = field(default_factory=list)


def run_remote_actor(
    env: str | Callable[..., Any],
    server: str,
    *,
    num_envs: int | None = None,
    spool_base: str | Path | None = None,
    settings: RemoteActorSettings | Mapping[str, Any] | None = None,
    key: str | Path | None = None,
    server_key: str | Path | None = None,
    seed: int | None = None,
    max_steps: int | None = None,
    block_steps: int | None = None,
    connect_timeout_s: float = 60.0,
    give_up_s: float = 600.0,
    drain_s: float = 10.0,
    should_stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[ActorReport], None] = lambda _: None,
) -> ActorReport:
    """Play `env` for a training server at `server` (`tcp://HOST:PORT`) until its run is finished, `should_stop()`, or
    `max_steps` environment steps; gives what was done.

    Unacknowledged trajectories wait below `spool_base`. A server that does not answer for `give_up_s` seconds is given up with
    `ServerUnreachableError`; what waits is sent by the next actor that starts there. `key` is this client's `.key`
    file and `server_key` the server's public key, where it asks for keys. `settings` has `environment`, `spool` and `link`.
    """
    if not isinstance(settings, RemoteActorSettings):
        settings = parse_settings(RemoteActorSettings, dict(settings or {}))
    if num_envs is not None:
        chosen = parse_settings(
            EnvSettings, {**settings.environment.model_dump(exclude_unset=True), "num_envs": num_envs}
        )
        settings = settings.model_copy(update={"environment": chosen})
    keys = load_client_keys(key, server_key)
    base = default_spool_base(server) if spool_base is None else Path(spool_base)
    with take_spool(base, settings.spool) as spool:
        link = ServerLink(server, spool, settings=settings.link, keys=keys)
        try:
            welcome = link.connect(connect_timeout_s, should_stop)
            if welcome is None:
                drain_s = 0.0
                return ActorReport(num_left=spool.num_waiting)
            envs = on_host(make_vector(env, _as_the_run(settings.environment, welcome)))
            try:
                _require_same_spaces(envs, welcome)
                actor = RemoteActor(
                    envs,
                    link,
                    welcome,
                    seed=seed,
                    block_steps=block_steps,
                    timeout_s=connect_timeout_s,
                    give_up_s=give_up_s,
                )
                report = actor.run(max_steps, should_stop, on_progress)
            finally:
                envs.close()
        finally:
            link.close(drain_s)
        report.num_rejected, report.num_left = link.num_rejected, spool.num_waiting
        return report


class RemoteActor:
    """Environments, the policies that play them, and the way to the server."""

    def __init__(
        self,
        envs: VectorEnvironment,
        link: ServerLink,
        welcome: Welcome,
        *,
        seed: int | None,
        block_steps: int | None,
        timeout_s: float,
        give_up_s: float,
    ) -> None:
        self._envs, self._link, self._block_steps, self._give_up_s = envs, link, block_steps, give_up_s
        self._actors: dict[str, FollowedActor] = {}
        for name, group in envs.groups.items():
            follower = ModelFollower(link, name, group.observation_space, group.action_space)
            follower.wait(timeout_s)
            self._actors[name] = FollowedActor(follower)
        seeds = np.random.SeedSequence(seed).generate_state(2, np.uint32)
        self._collector = Collector(
            envs,
            self._actors,
            num_steps=block_steps or MAX_BLOCK_STEPS,
            seed=int(seeds[0]),
            rng=np.random.default_rng(int(seeds[1])),
            records_logp=welcome.needs_logp,
            records_states=welcome.needs_states,
        )
        self._splitters = {name: RolloutSplitter() for name in envs.groups}
        self.report = ActorReport()

    def run(
        self,
        max_steps: int | None,
        should_stop: Callable[[], bool],
        on_progress: Callable[[ActorReport], None],
    ) -> ActorReport:
        """Play; see `run_remote_actor`."""
        report = self.report
        while not (should_stop() or self._link.is_finished):
            if max_steps is not None and report.num_env_steps >= max_steps:
                break
            self._play_block(should_stop)
            self._require_reachable()
            on_progress(report)
            self._link.wait_for_turn(_TURN_TIMEOUT_S)
        self._send([rows for splitter in self._splitters.values() if (rows := splitter.take_open_rows())], should_stop)
        return report

    def _play_block(self, should_stop: Callable[[], bool]) -> None:
        version = min(actor.take_newest() for actor in self._actors.values())
        rollouts = self._collector.collect(version, self._num_steps())
        blocks = [self._splitters[name].split(rollout) for name, rollout in rollouts.items()]
        first = next(iter(rollouts.values()))
        self.report.num_env_steps += first.num_steps * self._envs.num_envs
        self.report.returns += self._collector.take_ended().returns
        self._send(blocks, should_stop)

    def _send(self, blocks: list[TrajectoryBlock], should_stop: Callable[[], bool]) -> None:
        frames = frames_of(blocks)
        if frames:
            self._keep(frames, should_stop)
            self.report.num_messages += 1

    def _num_steps(self) -> int:
        """Steps of each environment in the next block: this actor's share of an update, unless it was told."""
        if self._block_steps is not None:
            return self._block_steps
        share = -(-self._link.steps_wanted // self._envs.num_envs)
        return min(max(1, share), MAX_BLOCK_STEPS)

    def _keep(self, frames: list[memoryview], should_stop: Callable[[], bool]) -> None:
        """Spool a message, waiting for room as long as it takes; an actor that is stopped meanwhile exceeds the bound once."""
        spool: Spool = self._link.spool
        has_warned = False
        while True:
            try:
                spool.append(frames)
                break
            except SpoolFullError as error:
                if not has_warned:
                    _log.warning("the environments wait: %s", error)
                    has_warned = True
                spool.wait_for_room(sum(map(len, frames)) + 64, _ROOM_LOOK_S)
                self._require_reachable()
                if should_stop():
                    spool.append(frames, is_last=True)
                    break
        self._link.wake()

    def _require_reachable(self) -> None:
        if self._link.unreachable_s > self._give_up_s:
            raise ServerUnreachableError(
                f"{self._link.address} has not answered for {self._give_up_s:g} s; "
                f"{self._link.spool.num_waiting} messages wait in {self._link.spool.directory}"
            )


def _as_the_run(own: EnvSettings, welcome: Welcome) -> EnvSettings:
    """The settings with those of the run's environment that were not given here: its options and wrappers, and who shares a
    policy. A wrapper that is no known, installed one needs the user's word, for a server could name any code."""
    values = {name: getattr(own, name) for name in EnvSettings.model_fields}
    for name in SHOWN:
        if name in welcome.environment and name not in own.model_fields_set:
            values[name] = welcome.environment[name]
    taken = parse_settings(EnvSettings, values)
    require_no_lessons(taken.parameters)
    for name in taken.wrapper_names:
        if "wrappers" not in own.model_fields_set and not is_installed_wrapper(name):
            raise UntrustedError(
                f"the server's run has the wrapper {name!a:.200}, which runs code of that name; if you trust it, name the "
                f"run's wrappers: --wrap {', --wrap '.join(map(ascii, taken.wrapper_names)):.300}"
            )
    return taken


def _require_same_spaces(envs: VectorEnvironment, welcome: Welcome) -> None:
    """`ConfigError` where the environment is not the run's."""
    if set(welcome.behaviors) != set(envs.groups):
        raise ConfigError(f"the run trains {sorted(welcome.behaviors)}, the environment has {sorted(envs.groups)}")
    for name, group in envs.groups.items():
        for what, space in (("observation", group.observation_space), ("action", group.action_space)):
            theirs = welcome.behaviors[name].get(f"{what}_space")
            if space_to_json(space) != theirs:
                raise ConfigError(
                    f"group {name!r}: the {what} space here is {space_to_json(space):.200}, the run's {theirs!s:.200}; "
                    f"play {welcome.env} with the same options"
                )
