"""Simulators in many threads, a policy that is replaced while they run, and metrics: `python examples/simulator_threads.py`.

A thread that finds the policy free acts at once; threads that come meanwhile share the next forward pass.
"""

import sys
import threading
from pathlib import Path
from uuid import UUID

import numpy as np
import torch
from gymnasium import spaces

from relayrl.models.actor_critic import ActorCritic
from relayrl.models.export import export_policy
from relayrl.models.exported import ExportFormat, PolicyMetadata
from relayrl.models.settings import NetworkSettings
from relayrl.runtime.agent import RelayRLAgent
from relayrl.runtime.agent_builder import AgentBuilder
from relayrl.sinks.contract import open_source

OBSERVATION = spaces.Box(0, 20, (1,), np.float32)
ACTION = spaces.Discrete(2)
NUM_THREADS, NUM_EPISODES, EPISODE_STEPS = 8, 10, 40


def policy_file(path: Path, version: int) -> Path:
    """What a trainer would publish as version `version`."""
    network = NetworkSettings(hidden_sizes=(64, 64))
    policy = ActorCritic(OBSERVATION, ACTION, network, torch.Generator().manual_seed(version))
    metadata = PolicyMetadata("junction", "ppo", "agent", version, False, OBSERVATION, ACTION)
    return export_policy(policy, metadata, path, ExportFormat.ONNX)


def control(agent: RelayRLAgent, actor_id: UUID, seed: int, newest_is_out: threading.Event) -> None:
    """A traffic light: cars arrive, and green lets them go. A bus forbids to stay on red."""
    rng, ids = np.random.default_rng(seed), (actor_id,)
    for episode in range(NUM_EPISODES):
        if episode == NUM_EPISODES - 1:
            newest_is_out.wait(60)
        cars, reward = 0, 0.0
        for _ in range(EPISODE_STEPS):
            bus = rng.random() < 0.1
            obs = np.array([[min(cars, 20)]], np.float32)
            record = agent.request_action(ids, obs, mask=[[not bus, True]], reward=reward)
            green = bool(record.action[0])
            assert green or not bus
            cars = max(0, cars - 3) if green else cars + int(rng.integers(0, 3))
            reward = -float(cars) / 10
        final = np.array([[min(cars, 20)]], np.float32)
        agent.flag_last_action(ids, reward=reward, truncated=True, final_obs=final)


def main(folder: Path) -> None:
    """Run all lights, publish newer policies meanwhile, then read back what each version did."""
    url = f"arrow:{folder / 'experience'}"
    files = [policy_file(folder / f"model-{version}.onnx", version) for version in range(1, 4)]
    builder = AgentBuilder().actor_count(NUM_THREADS).router_scale(2).default_model(files[0]).sink(url)
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        newest_is_out = threading.Event()
        threads = [threading.Thread(target=control, args=(agent, each, i, newest_is_out)) for i, each in enumerate(ids)]
        for thread in threads:
            thread.start()
        for newer in files[1:]:
            agent.update_model(newer)
        newest_is_out.set()
        for thread in threads:
            thread.join(60)
        latency = agent.metrics["runtime/request_seconds"].read()
    with open_source(url) as source:
        trajectories = list(source)
    versions = np.concatenate([each.policy_version for each in trajectories])
    numbers, counts = np.unique(versions, return_counts=True)
    print(f"steps per policy version: {dict(zip(numbers.tolist(), counts.tolist(), strict=True))}")
    print(f"requests: {latency.count}")
    assert len(versions) == NUM_THREADS * NUM_EPISODES * EPISODE_STEPS
    assert versions.max() == 3


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/simulator_threads").absolute())
