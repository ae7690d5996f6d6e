"""Agents without a model of their own: an inference server acts for them, and a tenth of them try a newer policy."""

import tempfile
from pathlib import Path
from uuid import UUID

import gymnasium
import numpy as np

import relayrl

folder = Path(tempfile.mkdtemp())
for seed, steps in ((1, 512), (2, 1024)):  # two short runs stand for an old policy and a newer one
    relayrl.train("CartPole-v1", steps=steps, seed=seed, run_dir=folder / f"run{seed}", progress=False)
old, new = folder / "run1" / "model.onnx", folder / "run2" / "model.onnx"

with relayrl.InferenceServer("tcp://127.0.0.1:0", [old], store=folder / "store", canary=f"{new}@10%") as server:
    agent = relayrl.AgentBuilder().actor_count(0).inference(server.address, "client_fallback").seed(0).build()
    with agent:
        ids = [agent.new_actor(UUID(int=i)) for i in range(20)]
        envs = [gymnasium.make("CartPole-v1") for _ in ids]
        seen = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)])
        rewards = None
        for _ in range(5):
            record = agent.request_action(ids, seen, reward=rewards)
            steps_taken = [env.step(action) for env, action in zip(envs, record.action, strict=True)]
            seen = np.stack([step[0] for step in steps_taken])
            rewards = np.array([step[1] for step in steps_taken], np.float32)
        versions, counts = np.unique(record.policy_version, return_counts=True)
        print("actors by policy version:", dict(zip(versions.tolist(), counts.tolist(), strict=True)))
        assert len(versions) == 2
    print("deployed:", server.deployments)
