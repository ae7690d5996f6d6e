"""Simulators in many threads, a policy that is replaced while they run, and metrics: `python examples/simulator_threads.py`.

A thread that finds the policy free acts at once; threads that come meanwhile share the next forward pass.
"""

import sys
import threading
from pathlib import Path
from uuid import UUID

import numpy as np
from gymnasium import spaces

from relayrl import AgentBuilder, RelayRLAgent, RelayRLTrainer, TrainerArgs, open_source

OBSERVATION = spaces.Box(0, 20, (1,), np.float32)
ACTION = spaces.Discrete(2)
NUM_THREADS, NUM_EPISODES, EPISODE_STEPS = 8, 10, 40


def policy_file(folder: Path, seed: int) -> Path:
    """An untrained policy stands in for what a trainer would publish."""
    args = TrainerArgs("junction", folder, observation_space=OBSERVATION, action_space=ACTION, seed=seed)
    return RelayRLTrainer.ppo(args).acquire_model("onnx").path


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
    files = [policy_file(folder / f"policy-{version}", version) for version in range(3)]
    builder = AgentBuilder().actor_count(NUM_THREADS).router_scale(2).default_model(files[0]).sink(url)
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        newest_is_out = threading.Event()
        threads = [threading.Thread(target=control, args=(agent, each, i, newest_is_out)) for i, each in enumerate(ids)]
        for thread in threads:
            thread.start()
        for version, newer in enumerate(files[1:], start=1):
            agent.update_model(newer, version=version)
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
    assert versions.max() == 2


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/simulator_threads").absolute())
