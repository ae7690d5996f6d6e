"""POCA on teams whose agents leave before they are paid: that it learns, and with what it works together."""

import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces

import relayrl
from relayrl import NetworkSettings, PPOParams, RelayRLTrainer, TrainerArgs
from relayrl.accelerator.on_policy_kernels import FASTEST, KernelUpdate
from relayrl.algorithms.on_policy import REFERENCE
from relayrl.algorithms.poca.poca import POCA
from relayrl.algorithms.poca.poca_params import POCAParams
from relayrl.algorithms.returns import gae
from relayrl.data.columns import Trajectory, trajectory_id
from relayrl.data.stacking import stack_jointly
from relayrl.engines.settings.mlagents_settings import from_mlagents
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.extend import AlgorithmPlugin, RewardSignal, assembly_of, make_run_parts

SMALL = {
    "environment.num_envs": 16,
    "environment.options": {"num_agents": 2, "size": 3, "max_episode_steps": 12},
    "network.hidden_sizes": [32],
    "trainer.time_horizon": 32,
    "params.pi_lr": 3e-3,
    "params.vf_lr": 3e-3,
    "params.entropy_coef": 0.01,
    "evaluation.episodes": 200,
}


class CutAtDeath(POCA):
    """Broken on purpose: an agent's return ends with the agent, as PPO's does."""

    def _prepare(self, rollout, central, fresh=None):
        batch = super()._prepare(rollout, central, fresh)
        features = self._update.features(rollout.obs.reshape(-1, *rollout.obs.shape[2:]))
        joint = torch.from_numpy(features.reshape(*rollout.joint(rollout.valid).shape, -1)).flatten(0, 1)
        present = torch.from_numpy(rollout.joint(rollout.valid)).flatten(0, 1)
        with torch.no_grad():
            of_team = self.policy.critic.value(joint, present).numpy().reshape(len(rollout.reward), -1)
        value = np.repeat(of_team, len(rollout.header.agent_ids), 1)
        following = np.concatenate([value[1:], np.zeros_like(value[:1])])
        flags = rollout.terminated, rollout.truncated, rollout.valid
        own = gae(rollout.reward, value, following, *flags, gamma=self.params.gamma, lam=self.params.lam)
        batch.advantage = own[rollout.valid]
        return batch


def trained(path: Path, algo: str, steps: int, **settings):
    run_settings = SMALL | settings
    return relayrl.train(
        "native:dungeon_escape", algo=algo, steps=steps, seed=1, run_dir=path, settings=run_settings, progress=False
    )


def test_an_agent_learns_to_die_for_the_other_unless_its_return_ends_with_it(tmp_path):
    """Of two agents, the one that kills the dragon gets nothing itself. Random play succeeds in one episode of twenty."""
    relayrl.register_algorithm("cut-at-death", AlgorithmPlugin(POCAParams, "broken", assembly_of(CutAtDeath)))
    settings = {"trainer.summary_freq": 2048}
    shares = {}
    for algo in ("poca", "cut-at-death"):
        history = trained(tmp_path / algo, algo, 20_480, **settings).history
        shares[algo] = float(np.mean(history["episode/return_mean"][-4:]))
    assert shares["poca"] > 0.3
    assert shares["cut-at-death"] < 0.1


@pytest.fixture(scope="module")
def dungeon():
    """A rollout of a few dungeons, in which agents die."""
    settings = {"environment.num_envs": 8, "network.hidden_sizes": [16], "trainer.time_horizon": 64, "seed": 3}
    parts = make_run_parts("native:dungeon_escape", algo="poca", settings=settings)
    try:
        return parts.collect(0)["agent"]
    finally:
        parts.close()


def learner(rollout, backend, **params):
    settings = POCAParams(num_minibatches=2, **params)
    network = NetworkSettings(hidden_sizes=(16, 16))
    generator = torch.Generator().manual_seed(0)
    header = rollout.header
    policy = POCA.make_policy(header.observation_space, header.action_space, network, settings, generator, None, None)
    return POCA(policy, settings, np.random.default_rng(0), backend)


def test_the_kernels_take_the_steps_that_torch_takes(dungeon):
    assert not dungeon.valid.all()
    fast, reference = (learner(dungeon, backend) for backend in (FASTEST, REFERENCE))
    metrics = [each.update([dungeon], 0.0) for each in (fast, reference)]
    assert isinstance(fast._update, KernelUpdate)
    assert metrics[0].keys() == metrics[1].keys()
    for name, number in metrics[1].items():
        assert metrics[0][name] == pytest.approx(number, rel=2e-3, abs=2e-5), name
    for mine, theirs in zip(fast.policy.parameters(), reference.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_trajectories_of_the_dungeon_are_credited_as_its_rollout_is(dungeon):
    """What a training server or a sink gives back: agents of different lengths, put beside each other again."""
    stacked = stack_jointly(list(dungeon.trajectories()), {"agent": dungeon.header})["agent"]
    for played in (dungeon, stacked):
        batch = learner(played, REFERENCE, gamma=1.0, lam=1.0)._prepare(played, None)
        assert len(batch) == dungeon.valid.sum()


class Calm(RewardSignal):
    """1 for staying."""

    def evaluate(self, rollout):
        return (rollout.action == 0).astype(np.float32)


def test_a_reward_signal_teaches_a_team(tmp_path):
    """Staying is worth more than the goal: nobody moves until time is up."""
    relayrl.extend.register_reward_signal("calm", Calm)
    run = trained(tmp_path, "poca", 12_288, **{"reward_signals.calm": {"strength": 1.0}})
    assert run.result.mean_return < 0.05
    assert run.history["episode/length_mean"][-1] > 11.0


SEEN_BY = {"a": np.array([1.0, 0.0], np.float32), "b": np.array([0.0, 1.0], np.float32)}


def episode(trainer, number, rng):
    """Agent a dies after its only action; if that was 1, b is paid two steps later."""
    group = next(iter(trainer.groups.values()))
    env, actor, actions = uuid.UUID(int=number + 1), trainer.actor(), {}
    for agent, num_steps in (("a", 1), ("b", 3)):
        obs = np.tile(SEEN_BY[agent], (num_steps, 1))
        actions[agent] = actor.act(obs, None, rng)
        paid = np.zeros(num_steps, np.float32)
        paid[-1] = agent == "b" and actions["a"][0] == 1
        yield Trajectory(
            trajectory_id=trajectory_id(env, agent, number, 0),
            env_id=env,
            agent_id=agent,
            group=group.name,
            observation_space=group.observation_space,
            action_space=group.action_space,
            episode=number,
            first_step=0,
            obs=obs,
            action=actions[agent],
            reward=paid,
            policy_version=np.zeros(num_steps, np.int64),
            terminated=True,
            truncated=False,
            failed=False,
            final_obs=SEEN_BY[agent],
            step=np.arange(num_steps),
            end_step=num_steps,
        )


@pytest.mark.parametrize(("algo", "params"), [("poca", POCAParams), ("ippo", PPOParams)])
def test_a_trainer_of_the_facade_credits_who_died(algo, params, tmp_path):
    box, choice = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2)
    network = NetworkSettings(hidden_sizes=(16,))
    args = TrainerArgs("team", tmp_path, observation_space=box, action_space=choice, network=network)
    trainer = getattr(RelayRLTrainer, algo)(args, params(pi_lr=0.01, traj_per_epoch=64, target_kl=None))
    for agent in SEEN_BY:
        trainer.register_agent(agent, "team")
    rng, number, num_epochs = np.random.default_rng(0), 0, 0
    while num_epochs < 12:
        is_complete = [trainer.receive_trajectory(each) for each in episode(trainer, number, rng)]
        number += 1
        if any(is_complete):
            assert trainer.train_model()
            num_epochs += 1
    share = trainer.actor().act(np.tile(SEEN_BY["a"], (1000, 1)), None, rng).mean()
    assert share > 0.95 if algo == "poca" else share < 0.8


def test_an_mlagents_poca_file_is_mapped():
    written = """
    behaviors:
      DungeonEscape:
        trainer_type: poca
        hyperparameters: {batch_size: 1024, buffer_size: 10240, learning_rate: 3.0e-4, beta: 0.01, epsilon: 0.2, lambd: 0.95,
          num_epoch: 3, learning_rate_schedule: constant}
        network_settings: {normalize: false, hidden_units: 256, num_layers: 2}
        reward_signals: {extrinsic: {gamma: 0.99, strength: 1.0}}
        max_steps: 20000000
    """
    values, notes = from_mlagents(yaml.safe_load(written))
    settings = RunSettings.model_validate({"env": "native:dungeon_escape", **values})
    assert settings.algo == "poca"
    assert isinstance(settings.params, POCAParams)
    assert (settings.params.pi_lr, settings.params.vf_lr, settings.params.lam, settings.params.gamma) == (
        3e-4,
        3e-4,
        0.95,
        0.99,
    )
    assert (settings.params.train_pi_iters, settings.params.num_minibatches, settings.params.entropy_coef) == (
        3,
        10,
        0.01,
    )
    assert settings.network.hidden_sizes == (256, 256)
    assert not notes
