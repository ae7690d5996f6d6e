"""Runs in Dict, Tuple, integer, unbounded and n-dimensional action spaces, from learning to records, exports and servers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import relayrl
from relayrl import AgentBuilder, RelayRLTrainer, TrainerArgs, open_source
from relayrl.data.trees import leaves, map_tree
from relayrl.errors import ConfigError
from relayrl.extend import MultiAgentReset, MultiAgentStep
from relayrl.models.policy import parameter_hash
from relayrl.testing import FollowSignal

sys.path.append(str(Path(__file__).parent.parent / "servers"))

SMALL = {"environment.num_envs": 8, "trainer.time_horizon": 16, "network.hidden_sizes": [16], "evaluation.episodes": 4}
FEW_PASSES = {"params.train_vf_iters": 2, "params.pi_lr": 1e-2, "statistics.tensorboard": False}
RANDOM_RETURN = 4.0  # of 8 steps


def hybrid() -> FollowSignal:
    return FollowSignal()


def masked() -> FollowSignal:
    return FollowSignal(masks=True)


def grid() -> FollowSignal:
    return FollowSignal(action_space=spaces.Box(-1.0, 3.0, (2, 2), np.float32))


def boxes() -> FollowSignal:
    return FollowSignal(
        action_space=spaces.Dict({"a": spaces.Box(-1, 3, (2, 1)), "b": spaces.Box(-1, 1, (), np.float64)})
    )


def unbounded() -> FollowSignal:
    return FollowSignal(action_space=spaces.Box(-np.inf, np.inf, (2,), np.float32))


def integers() -> FollowSignal:
    return FollowSignal(action_space=spaces.Box(-1, 2, (2, 2), np.int8))


class TwoSignals(relayrl.MultiAgentEnvironment):
    """Two agents, each with a `FollowSignal` of its own, with masks."""

    def __init__(self) -> None:
        self._own = {"a_0": FollowSignal(masks=True), "a_1": FollowSignal(masks=True)}
        self.possible_agents = tuple(self._own)
        self.observation_spaces = {agent: each.observation_space for agent, each in self._own.items()}
        self.action_spaces = {agent: each.action_space for agent, each in self._own.items()}
        self.masks: dict[str, Any] = {}
        self._over = True

    masks_actions = True

    @property
    def agents(self):
        return () if self._over else self.possible_agents

    def action_masks(self):
        return self.masks

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._over = False
        first = {a: env.reset(seed=None if seed is None else seed + i) for i, (a, env) in enumerate(self._own.items())}
        self.masks = {agent: reset.info["action_mask"] for agent, reset in first.items()}
        return MultiAgentReset({agent: reset.observation for agent, reset in first.items()}, {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        steps = {agent: env.step(actions[agent]) for agent, env in self._own.items()}
        self._over = any(step.truncated for step in steps.values())
        self.masks = {agent: step.info["action_mask"] for agent, step in steps.items()}
        return MultiAgentStep(
            {agent: step.observation for agent, step in steps.items()},
            {agent: step.reward for agent, step in steps.items()},
            {},
            {agent: step.truncated for agent, step in steps.items()},
            {},
        )

    def build_observation(self):
        return {agent: env.build_observation() for agent, env in self._own.items()}


def train(env: str, algo: str, steps: int, folder: Path, **settings: Any) -> relayrl.Run:
    passes = {**FEW_PASSES, "params.train_pi_iters": 4, "params.target_kl": None}
    few = {"ppo": passes, "mappo": passes, "appo": FEW_PASSES, "impala": FEW_PASSES, "reinforce": FEW_PASSES}
    own = {**SMALL, **few.get(algo, {}), **{key.replace("__", "."): value for key, value in settings.items()}}
    return relayrl.train(
        f"{__name__}:{env}", algo=algo, steps=steps, seed=1, run_dir=folder, settings=own, progress=False
    )


def test_a_hybrid_policy_learns_under_masks_records_exports_and_acts(tmp_path):
    urls = [f"{kind}:{tmp_path / kind}" for kind in ("arrow", "parquet", "csv")] + [f"sqlite:{tmp_path / 'x.db'}"]
    run = train("masked", "ppo", 2_560, tmp_path / "run", record=urls[0])
    with open_source(urls[0]) as source:
        given = list(source)
    for url in urls[1:]:
        with relayrl.open_sink(url) as sink:
            sink.write(given)
    assert run.result.mean_return > 6.0 > RANDOM_RETURN
    assert run.evaluate(episodes=4).mean_return > 6.0

    records = []
    for url in urls:
        with open_source(url) as source:
            records.append(sorted(source, key=lambda each: str(each.trajectory_id)))
    assert sum(len(each) for each in records[0]) == 2_560
    assert set(records[0][0].action) == {"move", "rest", "tool"}
    assert records[0][0].action["rest"][0].shape[1:] == (2, 1)
    for others in records[1:]:
        for one, other in zip(records[0], others, strict=True):
            map_tree(np.testing.assert_array_equal, one.action, other.action)
            np.testing.assert_array_equal(one.action_mask, other.action_mask)

    obs, mask = np.array([[-1.0], [1.0]], np.float32), np.tile(masked().reset(seed=0).info["action_mask"], (2, 1))
    exported = [*run.export(tmp_path / "p.onnx"), *run.export(tmp_path / "p.pt", file_format="torchscript")]
    acted = []
    for path in exported:
        with (
            AgentBuilder()
            .actor_count(2)
            .default_model(path)
            .sink(f"arrow:{tmp_path / path.suffix}")
            .seed(0)
            .build() as agent
        ):
            ids = agent.get_actor_ids()
            record = agent.request_action(ids, obs, mask=mask)
            alone = agent.request_action(ids[:1], obs[:1], reward=1.0, mask=mask[:1])
            agent.flag_last_action(ids, reward=1.0)
            acted.append((record.action, alone.action, record.logp))
        with open_source(f"arrow:{tmp_path / path.suffix}") as source:
            kept = {len(each): each for each in source}
        assert set(kept) == {1, 2}
        assert kept[2].action["tool"].tolist() == [record.action["tool"][0], alone.action["tool"][0]]
    map_tree(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-4), *(action for action, _, _ in acted))
    greedy = run.policy.act(obs[0], mask=mask[0])
    assert run.policy.metadata.action_space.contains(greedy)
    assert greedy["tool"] == 1  # the lowest, for a low signal


@pytest.mark.parametrize(
    ("env", "algo", "steps", "floor"),
    [
        ("grid", "ppo", 2_560, 5.0),
        ("unbounded", "ppo", 2_560, 5.0),
        ("integers", "impala", 2_560, 5.0),
        ("hybrid", "reinforce", 2_560, 5.0),
        ("boxes", "ddpg", 600, 6.0),
    ],
)
def test_every_kind_of_space_is_learned_in(tmp_path, env, algo, steps, floor):
    replay = {
        "params__learning_starts": 200,
        "params__batch_size": 64,
        "params__actor_lr": 3e-3,
        "params__critic_lr": 3e-3,
    }
    own = replay if algo == "ddpg" else {}
    assert train(env, algo, steps, tmp_path / "run", **own).result.mean_return > floor


@pytest.mark.parametrize(("env", "algo"), [("boxes", "td3"), ("grid", "sac"), ("masked", "ppo")])
def test_a_resumed_run_has_the_same_bits(tmp_path, env, algo):
    replay = {"params__learning_starts": 64, "params__batch_size": 16} if algo != "ppo" else {}
    often = {**replay, "trainer__checkpoint_interval": 128, "evaluation__episodes": 0}
    train(env, algo, 256, tmp_path / "whole", **often)
    train(env, algo, 128, tmp_path / "cut", **often)
    relayrl.train(run_dir=tmp_path / "cut", resume=True, steps=256, progress=False, trust=True)
    hashes = {relayrl.load_run(tmp_path / name).result.parameter_hash for name in ("whole", "cut")}
    assert len(hashes) == 1


@pytest.mark.slow
def test_workers_give_the_same_bits(tmp_path):
    few = {"evaluation__episodes": 0}
    hashes = {
        train("masked", "ppo", 128, tmp_path / str(workers), environment__workers=workers, **few).result.parameter_hash
        for workers in (0, 2)
    }
    assert len(hashes) == 1


def _all(env: str) -> Any:
    return masked().reset(seed=0).info["action_mask"] if env == "masked" else None


def test_central_critics_and_memories_take_agents_with_hybrid_actions(tmp_path):
    memory = {"kind": "lstm", "size": 8, "sequence_length": 8}
    run = train("TwoSignals", "mappo", 512, tmp_path / "run", network__memory=memory, environment__sharing="separate")
    assert np.isfinite(run.result.mean_return)
    assert set(run.policies) == {"a_0", "a_1"}


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac"])
def test_algorithms_with_replay_name_those_that_can(tmp_path, algo):
    with pytest.raises(ConfigError, match=r"use ppo, reinforce, impala or appo"):
        train("hybrid", algo, 64, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"needs finite bounds; ppo, reinforce, impala and appo do not"):
        train("unbounded", algo, 64, tmp_path / "other")


def test_the_facade_learns_from_trajectories_with_hybrid_actions(tmp_path):
    run = train("masked", "ppo", 256, tmp_path / "run", record=f"arrow:{tmp_path / 'steps'}")
    env = masked()
    args = TrainerArgs(
        env_dir=tmp_path,
        save_model_path=tmp_path / "model",
        observation_space=env.observation_space,
        action_space=env.action_space,
        masks_actions=True,
    )
    trainer = RelayRLTrainer.ppo(args)
    before = parameter_hash(trainer.policies["agent"])
    with open_source(f"arrow:{tmp_path / 'steps'}") as source:
        records = list(source)
    for trajectory in records:
        trainer.receive_trajectory(trajectory)
    trainer.train_model()
    assert parameter_hash(trainer.policies["agent"]) != before
    wrong = records[0].action["tool"] * 0 + 2  # the middle one, which the mask forbids
    import dataclasses

    broken = dataclasses.replace(
        records[0], action={**records[0].action, "tool": wrong}, trajectory_id=records[1].trajectory_id
    )
    with pytest.raises(ConfigError, match=r"'action.tool' in row 0 is 2, which its mask forbids"):
        trainer.receive_trajectory(broken)
    assert run.result.num_env_steps == 256


def test_remote_actors_and_an_inference_server_act_with_hybrid_actions(tmp_path):
    from remote_parts import QUIET

    from relayrl.envs.environment_settings import EnvSettings
    from relayrl.runtime.remote.remote_actor import RemoteActorSettings, run_remote_actor
    from relayrl.servers.inference.inference_server import InferenceServer
    from relayrl.servers.training.training_server import TrainingServer

    env = f"{__name__}:masked"
    options = {"settings": {**QUIET, "environment.num_envs": 2, "trainer.time_horizon": 16}, "steps": 128}
    with TrainingServer(env, algo="ppo", bind="tcp://127.0.0.1:0", run_dir=tmp_path / "run", **options) as server:
        server.start()
        own = {"spool_base": tmp_path / "spool", "settings": RemoteActorSettings(environment=EnvSettings(num_envs=2))}
        actor = threading.Thread(target=run_remote_actor, args=(env, server.address), kwargs={**own, "seed": 0})
        actor.start()
        assert server.wait(60.0).num_env_steps >= 128
        actor.join(60.0)
    model = relayrl.load_run(tmp_path / "run", trust=True).export(tmp_path / "p.onnx")[0]
    obs, mask = np.ones((2, 1), np.float32), np.tile(_all("masked"), (2, 1))
    with InferenceServer("tcp://127.0.0.1:0", [model]) as served:
        there = AgentBuilder().actor_count(2).inference(served.address).seed(0)
        here = AgentBuilder().actor_count(2).default_model(model).seed(0)
        actions = []
        for builder in (there, here):
            with builder.build() as agent:
                actions.append(agent.request_action(agent.get_actor_ids(), obs, mask=mask).action)
    assert [path for path, _ in leaves(actions[0])] == ["move", "rest.0", "rest.1", "tool"]
    map_tree(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-4), *actions)
