"""The facade's verbs, one by one: what they take, what they refuse, what they leave behind."""

from __future__ import annotations

import copy
import csv
import uuid
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_facade import ACT_DIM, IN_EPOCH, LENGTH, OBS_DIM, epoch, hashes, make_trainer, play, small_params, train

from relayrl import RelayRLTrainer, TrainerArgs
from relayrl.accelerator.on_policy_kernels import FASTEST
from relayrl.algorithms.on_policy_params import PPOParams, REINFORCEParams, Schedule
from relayrl.algorithms.params import TD3Params
from relayrl.algorithms.ppo import PPO
from relayrl.data.arrow.codec import encode
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import rows_with_successor
from relayrl.data.trees import index
from relayrl.errors import ActionMaskError, CheckpointError, ConfigError, LearningError
from relayrl.models.network_settings import NetworkSettings
from relayrl.sinks.contract import open_sink
from relayrl.training.facade.relayrl_trainer import MultiAgentTrainer
from relayrl.training.facade.trajectory_trainer import TrajectoryTrainer


def test_an_epoch_is_as_many_trajectories_as_the_params_say(tmp_path):
    trainer = make_trainer("ppo", tmp_path, params=PPOParams(train_pi_iters=1, train_vf_iters=1))
    answers = [trainer.receive_trajectory(play(trainer, episode)[0]) for episode in range(8)]
    assert answers == [False] * 7 + [True]
    assert trainer.train_model()
    assert not trainer.train_model()


def test_rows_that_fill_up_shorter_lanes_are_no_steps(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    long, short = epoch(trainer)
    columns = {name: getattr(short, name)[:3] for name in ("obs", "action", "reward", "policy_version")}
    for trajectory in (long, replace(short, **columns)):
        trainer.receive_trajectory(trajectory)
    trainer.train_model()
    assert trainer.num_env_steps == LENGTH + 3


def test_a_trajectory_that_waits_is_not_taken_twice(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    (one,) = play(trainer, 0)
    assert not trainer.receive_trajectory(one)
    assert not trainer.receive_trajectory(one)
    assert trainer.num_pending == 1
    assert trainer.log_epoch()["epoch/num_duplicates"] == 1


def test_reset_epoch_drops_what_waits_and_keeps_what_was_learned(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    train(trainer)
    learned = hashes(trainer)
    trainer.receive_trajectory(play(trainer, 5)[0])
    trainer.reset_epoch()
    assert trainer.num_pending == 0
    assert hashes(trainer) == learned
    assert "policy/loss" not in trainer.log_epoch()


def test_replay_is_filled_before_it_is_learned_from(tmp_path):
    trainer = make_trainer("td3", tmp_path, params=TD3Params(learning_starts=25, batch_size=4, buffer_size=100))
    (one, two, three) = (play(trainer, episode)[0] for episode in range(3))
    for trajectory, trained in ((one, False), (two, False), (three, True)):
        assert trainer.receive_trajectory(trajectory)
        assert trainer.train_model() is trained


def test_waiting_steps_are_bounded_by_the_buffer_size(tmp_path):
    trainer = make_trainer("ppo", tmp_path, buffer_size=15)
    trainer.receive_trajectory(play(trainer, 0)[0])
    with pytest.raises(ConfigError, match=r"20 steps would wait.*buffer_size 15.*train_model"):
        trainer.receive_trajectory(play(trainer, 1)[0])
    assert trainer.num_pending == 1


def test_the_buffer_size_of_the_args_is_the_replays(tmp_path):
    assert make_trainer("td3", tmp_path, buffer_size=123).params.buffer_size == 123
    assert make_trainer("td3", tmp_path).params.buffer_size == 500


def test_default_spaces_follow_from_the_algorithm(tmp_path):
    assert make_trainer("ppo", tmp_path).groups["agent"].action_space == spaces.Discrete(ACT_DIM)
    assert make_trainer("sac", tmp_path).groups["agent"].action_space == spaces.Box(-1, 1, (ACT_DIM,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation_space": spaces.Box(-1, 1, (4,))}, "give the trainer that observation_space"),
        ({"action_space": spaces.Discrete(5)}, "give the trainer that action_space"),
        ({"action_mask": np.ones((LENGTH, ACT_DIM), bool)}, "masks_actions=True"),
    ],
)
def test_trajectories_that_do_not_fit_are_refused(change, message, tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    with pytest.raises(ConfigError, match=message):
        trainer.receive_trajectory(replace(play(trainer, 0)[0], **change))
    assert trainer.num_pending == 0


def test_bounds_of_observations_do_not_matter(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    bounded = replace(play(trainer, 0)[0], observation_space=spaces.Box(-1, 1, (OBS_DIM,)))
    trainer.receive_trajectory(bounded)
    assert trainer.num_pending == 1


def test_a_step_that_allows_nothing_is_refused_by_name(tmp_path):
    trainer = make_trainer("sac", tmp_path, action_space=spaces.MultiDiscrete([2, 2]), masks_actions=True)
    (one,) = play(trainer, 0)
    mask = np.ones((LENGTH, 4), bool)
    mask[3, 2:] = False  # the second choice has nothing left
    with pytest.raises(ActionMaskError, match=rf"{one.agent_id!r} of environment {one.env_id} at step 3 of episode 0"):
        trainer.receive_trajectory(replace(one, action_mask=mask))
    assert trainer.num_pending == 0


def test_the_final_mask_reaches_replay(tmp_path):
    trainer = make_trainer("sac", tmp_path, action_space=spaces.Discrete(3), masks_actions=True)
    (one,) = play(trainer, 0, terminated=False, truncated=True)
    mask = np.array([False, True, True])
    trainer.receive_trajectory(replace(one, action_mask=np.ones((LENGTH, 3), bool), final_mask=mask))
    trainer.train_model()
    group = trainer._learned().trainer.replay._groups["agent"]
    assert group.records["next_mask"][:LENGTH, 0].tolist() == [[True] * 3] * (LENGTH - 1) + [mask.tolist()]


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_nested_observations_and_masked_choices(algo, tmp_path):
    observations = spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "rest": spaces.Tuple((spaces.MultiBinary(2),))})
    args = {"observation_space": observations, "action_space": spaces.Discrete(3, start=1), "masks_actions": True}
    trainer = make_trainer(algo, tmp_path, **args)
    mask = np.ones((LENGTH, 3), bool)
    mask[:, 2] = False
    trainer.receive_trajectory(replace(play(trainer, 0)[0], action_mask=mask, action=np.full(LENGTH, 2)))
    trainer.receive_trajectory(play(trainer, 1)[0])  # without a mask, everything is allowed
    assert trainer.train_model()
    actor = trainer.acquire_model().actor()
    distribution = actor.distribution(index(play(trainer, 2)[0].obs, slice(4)), mask[:4])
    assert (np.exp(distribution[:, 2]) == 0).all()


def test_recorded_log_probabilities_are_used_only_where_all_have_them(tmp_path):
    trainers = [make_trainer("ppo", tmp_path) for _ in range(3)]
    plain = epoch(trainers[0])
    recorded = [replace(t, logp=np.full(LENGTH, -3.0, np.float32)) for t in plain]
    results = []
    for trainer, trajectories in zip(trainers, (plain, [recorded[0], plain[1]], recorded), strict=True):
        for trajectory in trajectories:
            trainer.receive_trajectory(trajectory)
        trainer.train_model()
        results.append(hashes(trainer)["agent"])
    assert results[0] == results[1] != results[2]


def test_n_step_returns_do_not_run_into_the_next_env(tmp_path):
    """The last step of a trajectory that goes on: its return is its own reward, whatever lies behind it in replay."""
    trainer = make_trainer("ddpg", tmp_path, params=small_params("ddpg", num_step_returns=3, gamma=0.5))
    for episode in range(2):
        (one,) = play(trainer, episode, terminated=False, truncated=False)
        trainer.receive_trajectory(replace(one, reward=np.full(LENGTH, 10.0**episode, np.float32)))
        trainer.train_model()
    replay = trainer._learned().trainer.replay
    sampled = replay.sample(500, np.random.default_rng(0), gamma=0.5, num_step_returns=3).groups["agent"]
    assert set(np.unique(sampled.reward[sampled.valid])) == {1.0, 1.5, 1.75, 10.0, 15.0, 17.5}


def test_log_epoch_gives_and_writes_the_means(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    train(trainer)
    row = trainer.log_epoch()
    assert row["actor_loss"] == row["policy/loss"]
    assert row["critic_loss"] == row["value/loss"]
    assert row["epoch/number"] == 1
    assert row["episode/return_mean"] == pytest.approx(np.mean([t.episode_return for t in epoch(trainer)]))
    with (tmp_path / "progress.csv").open() as file:
        (written,) = csv.DictReader(file)
    assert float(written["actor_loss"]) == row["actor_loss"]
    assert int(written["num_env_steps"]) == IN_EPOCH * LENGTH


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_trainer_that_has_learned_nothing_can_be_saved(algo, tmp_path):
    one = make_trainer(algo, tmp_path)
    one.save("fresh")
    other = make_trainer(algo, tmp_path, seed=4)
    other.load("fresh")
    train(one)
    train(other)
    assert hashes(one) == hashes(other)


def test_saves_are_found_by_name_and_for_the_same_trainer(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    trainer.save("epoch-0001")
    with pytest.raises(CheckpointError, match=r"nothing was saved as 'epoch-1'.*there is epoch-0001"):
        trainer.load("epoch-1")
    with pytest.raises(CheckpointError, match="saved by ppo, not reinforce"):
        make_trainer("reinforce", tmp_path).load("epoch-0001")
    with pytest.raises(CheckpointError, match="another network or kernel"):
        make_trainer("ppo", tmp_path, network=NetworkSettings(hidden_sizes=(5,))).load("epoch-0001")
    with pytest.raises(ConfigError, match="no name for a save"):
        trainer.save("../elsewhere")


def test_a_failed_load_leaves_the_trainer_as_it_was(tmp_path):
    make_trainer("ppo", tmp_path, network=NetworkSettings(hidden_sizes=(5,))).save("other")
    trainer = make_trainer("ppo", tmp_path)
    before = hashes(trainer)
    with pytest.raises(CheckpointError):
        trainer.load("other")
    assert hashes(trainer) == before


def test_a_file_with_one_trajectory_is_read(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    (tmp_path / "one.arrow").write_bytes(encode(play(trainer, 0)[0]))
    trainer.receive_trajectory(tmp_path / "one.arrow")
    assert trainer.num_pending == 1


def test_sources_that_cannot_be_read_say_what_to_write(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    with open_sink(f"csv:{tmp_path / 'data'}") as sink:
        sink.write(play(trainer, 0))
    (part,) = (tmp_path / "data").glob("*.csv")
    with pytest.raises(ConfigError, match=f"csv:{part.parent}"):
        trainer.receive_trajectory(part)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no trajectories"):
        trainer.receive_trajectory(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="no file or folder"):
        trainer.receive_trajectory(tmp_path / "nowhere")


def test_deterministic_policies_refuse_choices(tmp_path):
    with pytest.raises(ConfigError, match="use ppo, reinforce, impala or appo, or sac"):
        _ = make_trainer("td3", tmp_path, action_space=spaces.Discrete(2)).policies


@pytest.mark.parametrize(
    ("args", "message"),
    [({}, "obs_dim or observation_space"), ({"obs_dim": 3}, "act_dim or action_space"), ({"obs_dim": 0}, "at least 1")],
)
def test_args_that_say_too_little_are_refused(args, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        RelayRLTrainer.ppo(TrainerArgs("env", tmp_path, **args))


def test_a_linear_learning_rate_follows_the_env_steps(tmp_path):
    params = REINFORCEParams(traj_per_epoch=1, lr_schedule=Schedule.LINEAR)
    trainer = make_trainer("reinforce", tmp_path, params=params, max_steps=LENGTH)
    trainer.receive_trajectory(play(trainer, 0)[0])
    trainer.train_model()
    learned = hashes(trainer)
    trainer.receive_trajectory(play(trainer, 1)[0])
    assert trainer.train_model()
    assert hashes(trainer) == learned  # the rate is zero: all steps of the run were taken


def test_trainers_of_one_agent_are_no_trainers_of_several(tmp_path):
    assert type(make_trainer("ppo", tmp_path)) is TrajectoryTrainer
    assert type(make_trainer("ippo", tmp_path)) is MultiAgentTrainer


def test_trajectories_teach_what_the_rollout_they_were_cut_from_teaches(tmp_path):
    """Four lanes of eight steps with ends inside: stacked again, they are padded, and give the same update."""
    params = PPOParams(traj_per_epoch=1, train_pi_iters=5, train_vf_iters=5, target_kl=None)
    trainer = make_trainer("ppo", tmp_path, params=params)
    policy = copy.deepcopy(trainer.policies["agent"])
    rollout = collected(trainer.groups["agent"].header)
    PPO(policy, params, np.random.default_rng(0), FASTEST).update([rollout], 0.0)
    for trajectory in rollout.trajectories():
        trainer.receive_trajectory(trajectory)
    assert trainer.num_pending == 9
    assert trainer.train_model()
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(trainer.policies["agent"].state_dict()[name], tensor, rtol=1e-4, atol=1e-6)


def collected(header: LaneHeader) -> Rollout:
    rng, T, L = np.random.default_rng(0), 8, 4
    terminated, truncated = np.zeros((2, T, L), bool)
    terminated[[2, 4, 7], [0, 1, 3]] = truncated[[5, 3, 6], [0, 2, 2]] = True
    step, lane = np.nonzero(rows_with_successor(terminated | truncated))
    return Rollout(
        header=replace(header, env_ids=tuple(uuid.UUID(int=i) for i in range(L))),
        obs=rng.normal(size=(T, L, OBS_DIM)).astype(np.float32),
        action=rng.integers(0, ACT_DIM, (T, L)),
        reward=rng.normal(size=(T, L)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        valid=np.ones((T, L), bool),
        failed=np.zeros((T, L), bool),
        policy_version=np.zeros((T, L), np.int64),
        first_episode=np.zeros(L, np.int64),
        first_step=np.zeros(L, np.int64),
        successors=Successors(step, lane, rng.normal(size=(len(step), OBS_DIM)).astype(np.float32)),
    )


class _Interrupting:
    """An algorithm's update that Ctrl-C hits after its parameters have moved."""

    def __init__(self, trainer):
        self._trainer, self._advance = trainer, trainer.learner.advance
        trainer.learner.advance = self

    def __call__(self):
        self._advance()
        raise KeyboardInterrupt


@pytest.mark.parametrize("verb", ["train_model", "advance"])
def test_after_an_update_that_was_interrupted_only_load_goes_on(tmp_path, verb):
    trainer = make_trainer("ppo", tmp_path)
    train(trainer)
    trainer.save_model()
    good, version = hashes(trainer), trainer.policy_version
    files = sorted(path.name for path in tmp_path.rglob("*"))
    for trajectory in (more := epoch(trainer)):
        trainer.receive_trajectory(trajectory)
    _Interrupting(trainer)
    with pytest.raises(KeyboardInterrupt):
        getattr(trainer, verb)()
    assert hashes(trainer) != good
    for use in (
        trainer.train_model,
        trainer.advance,
        trainer.save_model,
        trainer.acquire_model,
        trainer.live_policies,
        lambda: trainer.save("mine"),
        lambda: trainer.receive_trajectory(more[0]),
    ):
        with pytest.raises(LearningError, match=r"KeyboardInterrupt.*load\(\) a checkpoint") as raised:
            use()
        assert isinstance(raised.value.__cause__, KeyboardInterrupt)
    assert sorted(path.name for path in tmp_path.rglob("*")) == files
    trainer.load()
    assert (hashes(trainer), trainer.policy_version) == (good, version)
    train(trainer)
    assert trainer.policy_version == version + 1
    trainer.save_model()
