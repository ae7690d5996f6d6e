"""Policies and sinks whose every number is known, for tests of the runtime."""

import threading
import time
from uuid import UUID

import numpy as np
import torch
from gymnasium import spaces

from relayrl.data.trees import leaves
from relayrl.models.acting.actor import Actor
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportFormat, PolicyMetadata
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.runtime.requests.policy_model import CustomPolicy

OBS = spaces.Box(-1e6, 1e6, (2,), np.float32)
ACT = spaces.Discrete(3)


class FixedActor(Actor):
    """Prefers one action by far; may be told to wait, to fail, or to give NaN."""

    def __init__(self, prefers: int = 0, *, action_space=ACT, delay_s: float = 0.0, failure: Exception | None = None):
        self.head = likelihood_head(action_space)
        self.prefers, self.delay_s, self.failure = prefers, delay_s, failure
        self.gives_nan = False
        self.before_pass = lambda: None
        self.batch_sizes: list[int] = []

    def distribution(self, obs, mask=None):
        rows = len(next(leaf for _, leaf in leaves(obs)))
        self.batch_sizes.append(rows)
        if self.failure is not None:
            raise self.failure
        self.before_pass()
        time.sleep(self.delay_s)
        logits = np.zeros((rows, self.head.num_outputs), np.float32)
        logits[:, self.prefers] = np.nan if self.gives_nan else 50.0
        return self.head.parameters_numpy(logits, mask)


def fixed_policy(prefers: int = 0, version: int = 0, *, space=OBS, **options) -> CustomPolicy:
    return CustomPolicy(FixedActor(prefers, **options), space, policy_version=version)


def make_policy(observation_space=OBS, action_space=ACT, seed: int = 0) -> ActorCritic:
    generator = torch.Generator().manual_seed(seed)
    head = likelihood_head(action_space)
    policy = ActorCritic(observation_space, action_space, NetworkSettings(hidden_sizes=(8, 8)), generator)
    assert policy.head.num_outputs == head.num_outputs
    return policy


def export(policy, path, *, version: int = 1, masked: bool = False, group: str = "agent"):
    file_format = ExportFormat.ONNX if path.suffix == ".onnx" else ExportFormat.TORCHSCRIPT
    metadata = PolicyMetadata("Env-v0", "ppo", group, version, masked, policy.observation_space, policy.action_space)
    return export_policy(policy, metadata, path, file_format)


class ListSink:
    """Keeps what was written, and says what was flushed; may be slow, or fail a number of times."""

    def __init__(self, *, delay_s: float = 0.0, failures: int = 0) -> None:
        self.lock = threading.Lock()
        self.written: dict[UUID, object] = {}
        self.durable: dict[UUID, object] = {}
        self.num_writes = self.num_closes = 0
        self.delay_s, self.failures = delay_s, failures
        self.gate = threading.Event()
        self.gate.set()

    def write(self, trajectories) -> None:
        self.gate.wait(30)
        time.sleep(self.delay_s)
        with self.lock:
            if self.failures:
                self.failures -= 1
                raise OSError("disk full")
            self.num_writes += 1
            for each in trajectories:
                self.written.setdefault(each.trajectory_id, each)

    def flush(self) -> None:
        with self.lock:
            self.durable |= self.written

    def close(self) -> None:
        self.num_closes += 1

    @property
    def trajectories(self) -> list:
        return list(self.durable.values())

    @property
    def num_steps(self) -> int:
        return sum(len(each) for each in self.durable.values())


def steps_of(trajectories) -> list[tuple[UUID, int, int]]:
    """Every step by lane, episode and index."""
    return [(each.env_id, each.episode, each.first_step + i) for each in trajectories for i in range(len(each))]


def obs(*numbers: float) -> np.ndarray:
    """One observation per number: `[number, -number]`."""
    return np.array([[n, -n] for n in numbers], np.float32)
