"""Exploration is part of a policy snapshot: warm-up and noise reach every actor, wherever it acts."""

import numpy as np
import onnx
import pytest
import torch
from gymnasium import spaces

import relayrl
from relayrl.accelerator.live_actor import live_actor
from relayrl.engines.local.overlap import Overlapping
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.engines.local.run_parts import RunParts, build_parts
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.models.acting.exploration import Exploration
from relayrl.models.acting.warmup_actor import WarmupActor
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportFormat, PolicyMetadata
from relayrl.models.heads.box_heads import DeterministicHead
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import Policy
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.requests.published_policy import ActionChoice
from relayrl.training.facade.relayrl_trainer import RelayRLTrainer
from relayrl.training.facade.trajectory_trainer import TrainerArgs
from relayrl.training.queued.rl_trainer import RolloutTrainer
from relayrl.training.statistics.run_statistics import Statistics

OBS = spaces.Box(-1, 1, (3,), np.float32)
ACT = spaces.Box(-2, 2, (1,), np.float32)
ROWS = np.zeros((400, 3), np.float32)


def deterministic(noise_scale: float) -> Policy:
    generator = torch.Generator().manual_seed(0)
    return Policy(OBS, DeterministicHead(ACT, noise_scale), NetworkSettings(hidden_sizes=(8,)), generator)


def spread(actor) -> float:
    return float(actor.act(ROWS, None, np.random.default_rng(0)).std())


def test_an_actor_explores_as_it_is_told():
    actor = live_actor(deterministic(0.0))
    assert spread(actor) == pytest.approx(0.0, abs=1e-6)
    actor.explore(Exploration(noise_scale=0.1))
    assert spread(actor) == pytest.approx(0.2, rel=0.1)


def test_a_warm_up_ends_with_the_snapshot_that_says_so():
    actor = WarmupActor(live_actor(deterministic(0.1)), lambda: Exploration(is_warming_up=True, noise_scale=0.1))
    assert spread(actor) == pytest.approx(4 / np.sqrt(12), rel=0.1)  # uniform over [-2, 2]
    np.testing.assert_allclose(actor.act_greedily(ROWS[:1]), 0.0, atol=1e-6)  # who evaluates does not explore
    actor.explore(Exploration(noise_scale=0.05))
    assert spread(actor) == pytest.approx(0.1, rel=0.1)


def threaded(algo: str) -> tuple[RunParts, RolloutTrainer]:
    flags = {
        "algo": algo,
        "trainer.threaded": True,
        "environment.num_envs": 1,
        "params.learning_starts": 32,
        "params.update_interval": 16,
        "params.train_iters": 1,
        "network.hidden_sizes": (8,),
    }
    settings = build_run_settings("native:Pendulum", None, flags, [])
    parts = build_parts(settings)
    trainer = RolloutTrainer(
        "native:Pendulum",
        settings.trainer,
        lambda name, _: parts.policies[name],
        lambda _: parts.trainer,
        Statistics([]),
    )
    for name, group in parts.env.groups.items():
        trainer.add_policy(name, trainer.create_policy(name, group))
    return parts, trainer


def test_overlapped_collection_explores_as_its_snapshots_say():
    parts, trainer = threaded("td3")
    policy, acting = parts.policies["agent"], parts.acting["agent"]
    assert acting is not policy
    collected = []

    def keep(rollouts):
        collected.append(rollouts["agent"])
        return {}

    pace = Overlapping(trainer, parts.acting, parts.collector, PhaseClock(), keep)
    try:
        num_steps = parts.block_steps // parts.env.num_envs
        pace.advance(num_steps)  # 16 uniform steps
        assert np.abs(collected[0].action).max() > 0.5
        pace.settle()
        policy.head.noise_scale = 0.0  # a schedule of the learner's
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.zero_()
        for _ in range(3):
            pace.advance(num_steps)
            pace.settle()
        assert acting.head.noise_scale == 0.0
        assert np.abs(collected[-1].action).max() < 0.1  # neither warm-up nor noise, and hardly anything learned
    finally:
        pace.close()
        parts.close()


def test_a_snapshot_says_how_each_policy_explores():
    parts, trainer = threaded("ddpg")
    try:
        parts.policies["agent"].head.noise_scale = 0.25
        assert trainer.learner is parts.trainer
        assert trainer._snapshot().exploration == {"agent": Exploration(is_warming_up=True, noise_scale=0.25)}
    finally:
        parts.close()


@pytest.mark.parametrize("is_warming_up", [False, True])
@pytest.mark.parametrize("suffix", [".onnx", ".pt"])
def test_agents_explore_as_a_file_says(tmp_path, suffix, is_warming_up):
    policy = deterministic(0.1)
    state = {"noise_scale": 0.1, "is_warming_up": is_warming_up}
    metadata = PolicyMetadata("env", "td3", "agent", 1, False, OBS, ACT, policy.head.kind, **state)
    kind = ExportFormat.ONNX if suffix == ".onnx" else ExportFormat.TORCHSCRIPT
    path = export_policy(policy, metadata, tmp_path / f"model{suffix}", kind)
    for choice, expected in (("sample", 4 / np.sqrt(12) if is_warming_up else 0.2), ("greedy", 0.0)):
        builder = AgentBuilder().actor_count(400).default_model(path).action_choice(ActionChoice(choice)).seed(0)
        with builder.build() as agent:
            actions = agent.request_action(agent.get_actor_ids(), ROWS).action
        assert float(actions.std()) == pytest.approx(expected, rel=0.15, abs=1e-6)


def test_models_of_a_trainer_carry_its_exploration(tmp_path):
    args = TrainerArgs("env", str(tmp_path), observation_space=OBS, action_space=ACT)
    metadata = RelayRLTrainer.ddpg(args).acquire_model("onnx").metadata
    assert (metadata.noise_scale, metadata.is_warming_up) == (0.1, True)
    assert not RelayRLTrainer.ppo(args).acquire_model("onnx").metadata.is_warming_up


@pytest.mark.parametrize(("learning_starts", "is_warming_up"), [(60, "true"), (8, "false")])
def test_the_model_of_a_run_says_whether_its_warm_up_was_over(tmp_path, learning_starts, is_warming_up):
    settings = {
        "num_envs": 4,
        "params.learning_starts": learning_starts,
        "params.batch_size": 4,
        "evaluation.episodes": 0,
    }
    relayrl.train("native:Pendulum", algo="ddpg", steps=32, run_dir=tmp_path / "run", settings=settings, progress=False)
    properties = {each.key: each.value for each in onnx.load(tmp_path / "run" / "model.onnx").metadata_props}
    assert properties["relayrl.is_warming_up"] == is_warming_up
