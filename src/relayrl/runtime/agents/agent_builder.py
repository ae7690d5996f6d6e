"""`AgentBuilder`: says what an agent should be, and checks it all before anything is opened.

    agent = AgentBuilder().actor_count(8).router_scale(2).default_model("model.onnx").sink("arrow:runs/experience").build()

What is set here stands above the configuration file; what neither says has the defaults of `client_config`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from relayrl.config.enum_members import member_of
from relayrl.config.settings import parse_settings
from relayrl.errors import ConfigError
from relayrl.runtime.agents.agent import AgentDefaults, RelayRLAgent
from relayrl.runtime.agents.client_config import ClientConfig, read_client_config
from relayrl.runtime.agents.client_coordinator import ClientCoordinator
from relayrl.runtime.agents.state_manager import InferenceMode, StateManager, StateSettings
from relayrl.runtime.remote.inference_place import InferencePlace, InferenceServerSettings
from relayrl.runtime.requests.policy_model import CPU, ModelSource
from relayrl.runtime.requests.published_policy import ActionChoice
from relayrl.runtime.routing.learner_link import DEFAULT_MAX_POLICY_LAG, DEFAULT_QUEUE_SIZE, Learner
from relayrl.runtime.routing.sink_opener import SinkOpener, TrajectorySink

if TYPE_CHECKING:
    from relayrl.runtime.remote.remote_inference import RemoteInference
    from relayrl.runtime.remote.server_connection import ServerConnection

SERVED_FLUSH_INTERVAL_S = 0.1
"""A server learns from what it gets; without one, trajectories only have to be durable soon."""


class AgentBuilder:
    """Every method gives the builder back; `build` makes the agent."""

    def __init__(self) -> None:
        self._actor_count, self._device = 1, CPU
        self._model: ModelSource | None = None
        self._path: Path | None = None
        self._mode, self._choice = InferenceMode.SHARED, ActionChoice.SAMPLE
        self._seed: int | None = None
        self._given_sink: TrajectorySink | None = None
        self._overrides: dict[str, Any] = {}
        self._urls: tuple[str, ...] | None = None
        self._trainer: tuple[Learner, int | None, int] | None = None
        self._inference: InferenceServerSettings | None = None
        self._server: ServerConnection | None = None

    def actor_count(self, count: int) -> Self:
        """Actors that `start` makes with the default model; 0 makes none."""
        if count < 0:
            raise ConfigError(f"actor_count({count}); it cannot be negative")
        self._actor_count = count
        return self

    def router_scale(self, num_routers: int) -> Self:
        """Routers to begin with; `scale_throughput` changes them."""
        self._overrides["router_scale"] = num_routers
        return self

    def default_device(self, device: str) -> Self:
        """Where policies run: `cpu`, or a torch device such as `cuda:0` for TorchScript files and live policies."""
        self._device = device
        return self

    def default_model(self, model: ModelSource) -> Self:
        """A path to `.onnx` or `.pt`, a live policy (a copy of it is taken), or a `CustomPolicy`."""
        self._model = model
        return self

    def config_path(self, path: str | Path) -> Self:
        """A JSON file of `ClientConfig`, which is followed while the agent runs."""
        self._path = Path(path)
        return self

    def inference_mode(self, mode: InferenceMode | str) -> Self:
        """`"shared"`: one policy per device for all its actors. `"independent"`: each actor may be given its own."""
        self._mode = member_of(InferenceMode, mode, "inference mode")
        return self

    def inference(
        self,
        address: str | None = None,
        where: InferencePlace | str = InferencePlace.SERVER,
        *,
        group: str | None = None,
        timeout_s: float = 5.0,
        key: str | Path | None = None,
        server_key: str | Path | None = None,
    ) -> Self:
        """Act with the models of the inference server at `address` (the configuration's `addresses.inference` by default).

        `where` networks are passed: `"server"`, `"client"`, `"client_fallback"` (the server, and here while it cannot) or
        `"server_fallback"` (here, and the server while this process cannot). `group` names a policy where several are served.
        A request fails after `timeout_s` without an answer. A server off loopback wants keys: this client's `.key` file
        as `key`, and the `server_key`, a `.pub` file. With `server()`, actors act by this one and learn for that one.
        """
        if (key is None) != (server_key is None):
            raise ConfigError("give key= and server_key= together, or neither of them on loopback")
        if timeout_s <= 0.0:
            raise ConfigError(f"inference(timeout_s={timeout_s}); it must be positive")
        place = member_of(InferencePlace, where, "place of inference")
        self._inference = InferenceServerSettings(address or "", place, group, timeout_s, key, server_key)
        return self

    def action_choice(self, choice: ActionChoice | str) -> Self:
        """`"sample"` draws actions, `"greedy"` takes the most likely ones."""
        self._choice = member_of(ActionChoice, choice, "action choice")
        return self

    def seed(self, seed: int) -> Self:
        """Draw the same actions for the same requests in the same order."""
        self._seed = seed
        return self

    def sink(self, *sinks: str | TrajectorySink) -> Self:
        """Where trajectories go: URLs (`arrow:DIR`, `sqlite:FILE`, …), all of them; or one sink object of yours.

        Several calls add up.
        """
        urls = (*(self._urls or ()), *(each for each in sinks if isinstance(each, str)))
        before = () if self._given_sink is None else (self._given_sink,)
        objects = [*before, *(each for each in sinks if not isinstance(each, str))]
        if objects and (urls or len(objects) > 1):
            raise ConfigError("give either URLs or one sink object; relayrl.extend.FanOutSink joins several objects")
        self._urls, self._given_sink = urls, objects[0] if objects else None
        return self

    def trainer(
        self,
        trainer: Learner,
        *,
        max_policy_lag: int | None = DEFAULT_MAX_POLICY_LAG,
        queue_size: int = DEFAULT_QUEUE_SIZE,
    ) -> Self:
        """Learn while acting, as `RelayRLAgent.train_with`; actors act with the trainer's policies."""
        self._trainer = (trainer, max_policy_lag, queue_size)
        return self

    def server(
        self,
        address: str | None = None,
        *,
        spool: str | Path | None = None,
        key: str | Path | None = None,
        server_key: str | Path | None = None,
        group: str | None = None,
        timeout_s: float = 30.0,
    ) -> Self:
        """Act for a training server: actors act with its newest policies, and their trajectories go to it, besides the sinks.

        `address` is `tcp://HOST:PORT`; without one, `addresses.trajectories` of the file that `config_path` named before.
        Trajectories wait in `spool`, a directory of this agent alone, until the server holds them. `key` is this client's
        `.key` file and `server_key` the server's public key, where it asks for keys. `group` names the policy where the run has
        several. `start` waits `timeout_s` for the server's first answer.
        """
        if address is None:
            config = ClientConfig() if self._path is None else read_client_config(self._path)
            address = config.addresses.trajectories
        from relayrl.runtime.remote.server_connection import ServerConnection  # here, because it loads ZeroMQ

        self._server = ServerConnection(
            address, spool=spool, key=key, server_key=server_key, group=group, timeout_s=timeout_s
        )
        return self

    def build(self) -> RelayRLAgent:
        """The agent, not started yet."""
        policies = {"default_model()": self._model, "trainer()": self._trainer, "server()": self._server}
        sources = [name for name, given in policies.items() if given is not None]
        if self._inference is not None and self._server is None:  # a server's agents may act by another server
            sources.append("inference()")
        if len(sources) > 1:
            raise ConfigError(f"actors act with one policy; give {' or '.join(sources)}, not both")
        if self._actor_count and not sources:
            raise ConfigError("actors need a policy; call default_model(), or actor_count(0) to add actors later")
        config = ClientConfig() if self._path is None else read_client_config(self._path)
        values = {name: getattr(config, name) for name in ClientConfig.model_fields} | self._overrides
        if self._urls is not None:
            values["sink"] = config.sink.model_copy(update={"urls": self._urls})
        if self._server is not None and "flush_interval_s" not in config.sink.model_fields_set:
            values["sink"] = values["sink"].model_copy(update={"flush_interval_s": SERVED_FLUSH_INTERVAL_S})
        config = parse_settings(ClientConfig, values)
        settings = StateSettings(self._mode, self._choice, self._seed)
        inference = None if self._inference is None else self._remote(self._inference, config)
        state = StateManager(settings, self._model, config.max_traj_length, config.batching, inference)
        opener = SinkOpener(self._given_sink, self._server)
        coordinator = ClientCoordinator(state, opener, config, self._path, self._server, inference)
        agent = RelayRLAgent(coordinator, AgentDefaults(self._actor_count, self._device))
        if self._trainer is not None:
            trainer, max_policy_lag, queue_size = self._trainer
            agent.train_with(trainer, max_policy_lag=max_policy_lag, queue_size=queue_size)
            if self._actor_count:
                coordinator.require_policy_for_unnamed()
        return agent

    @staticmethod
    def _remote(settings: InferenceServerSettings, config: ClientConfig) -> RemoteInference:
        from relayrl.runtime.remote.remote_inference import RemoteInference  # ZeroMQ, which other agents do not need

        return RemoteInference(replace(settings, address=settings.address or config.addresses.inference))
