"""The collector on environments whose every number is known."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.algorithms.returns import gae
from relayrl.data.trees import Array, Tree
from relayrl.envs.environment_contract import MultiAgentEnvironment, MultiAgentReset, MultiAgentStep
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings, FailurePolicy
from relayrl.errors import ActionMaskError
from relayrl.models.acting.actor import Actor
from relayrl.models.heads.head_registry import likelihood_head as action_head
from relayrl.runtime.collector import Collector
from relayrl.runtime.evaluation import evaluate
from relayrl.testing.toy_environments import Herd


class UniformActor(Actor):
    """Draws uniformly among what the mask allows; remembers what it saw."""

    def __init__(self, action_space) -> None:
        self.head = action_head(action_space)

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        leaf = obs
        while not isinstance(leaf, np.ndarray):
            leaf = next(iter(leaf.values() if isinstance(leaf, dict) else leaf))
        return self.head.parameters_numpy(np.zeros((len(leaf), self.head.num_outputs), np.float32), mask)


def collector(env: Any, num_envs: int, num_steps: int, **settings) -> Collector:
    vector = make_vector(env, EnvSettings(num_envs=num_envs, **settings))
    actors = {name: UniformActor(group.action_space) for name, group in vector.groups.items()}
    return Collector(vector, actors, num_steps=num_steps, seed=0, rng=np.random.default_rng(0))


COUNTING = "relayrl.testing.toy_environments:CountingEnv"


def test_rows_hold_observation_action_and_what_came_of_it():
    rollout = collector(COUNTING, 2, 7, options={"terminate_at": 3}).collect(5)["agent"]
    # The environment shows its step counter and pays the index of the step; episodes last three steps.
    np.testing.assert_array_equal(rollout.obs[:, 0, 0], [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(rollout.reward[:, 0], rollout.reward[:, 1])
    np.testing.assert_array_equal(rollout.terminated[:, 1], [0, 0, 1, 0, 0, 1, 0])
    assert not rollout.truncated.any()
    assert (rollout.policy_version == 5).all()


def test_successors_hold_final_observations_and_what_follows_the_block():
    rollout = collector(COUNTING, 1, 5, options={"terminate_at": 3}).collect(0)["agent"]
    assert rollout.successors.step.tolist() == [2, 4]
    assert rollout.successors.obs[:, 0].tolist() == [3, 2]


def test_blocks_continue_each_other():
    one = collector(COUNTING, 1, 4, options={"terminate_at": 3})
    first, second = one.collect(0)["agent"], one.collect(1)["agent"]
    assert first.episode()[:, 0].tolist() == [0, 0, 0, 1]
    assert second.episode()[:, 0].tolist() == [1, 1, 2, 2]
    assert second.step()[:, 0].tolist() == [1, 2, 0, 1]


def test_truncation_is_not_termination():
    rollout = collector(COUNTING, 1, 4, options={"terminate_at": 9, "truncate_at": 2}).collect(0)["agent"]
    assert rollout.truncated[:, 0].tolist() == [False, True, False, True]
    assert not rollout.terminated.any()


def test_episode_returns_and_lengths_are_those_of_whole_episodes():
    one = collector(COUNTING, 2, 7, options={"terminate_at": 3})
    rollout = one.collect(0)["agent"]
    expected = float(rollout.reward[:3, 0].sum())
    returns, lengths = one.take_episodes()
    assert lengths == [3, 3, 3, 3]
    assert returns == pytest.approx([expected] * 4)
    assert one.take_episodes() == ([], [])


def test_masks_are_recorded_and_obeyed():
    rollouts = collector("relayrl.testing.toy_environments:MaskedBandit", 3, 40).collect(0)
    (rollout,) = rollouts.values()
    chosen = np.take_along_axis(rollout.action_mask, rollout.action[..., None], -1)
    assert chosen.all()
    assert not rollout.action_mask.all()


def test_masks_of_final_observations_are_recorded():
    rollout = collector("relayrl.testing.toy_environments:MaskedBandit", 3, 20).collect(0)["agent"]
    successors = rollout.successors
    assert successors.step.tolist() == [7] * 3 + [15] * 3 + [19] * 3
    assert (successors.action_mask.sum(-1) == 1).all()


class NoWayOut(Herd):
    """Sheep that are allowed nothing: before they have come, after they have gone, and `sheep_1` of environment 1 at step 2."""

    def _observe(self):
        result = super()._observe()
        sheep = result.groups["sheep"]
        sheep.action_mask[~sheep.active] = False
        sheep.action_mask[1, 1] &= self._step_of[1] != self.stuck_at
        return result


@pytest.mark.parametrize("stuck_at", [2, 9])
def test_an_agent_that_may_do_nothing_is_an_error_of_its_name(stuck_at):
    env = NoWayOut()
    env.stuck_at = stuck_at
    env.init_num_envs(2)
    actors = {name: UniformActor(group.action_space) for name, group in env.groups.items()}
    play = [
        lambda: Collector(env, actors, num_steps=8, seed=0, rng=np.random.default_rng(0)).collect(0),
        lambda: evaluate(env, actors, episodes=4, seed=0),
    ]
    for drawn in play:
        if stuck_at == 9:  # nobody who acts gets there
            drawn()
            continue
        with pytest.raises(
            ActionMaskError, match=rf"'sheep_1' of environment {env.env_ids[1]} \(environment 1\) at step 1"
        ):
            drawn()


class PaidEarly(MultiAgentEnvironment):
    """Two players take four turns; every turn pays the first 1 and the second -1, who has not acted on the first turn."""

    possible_agents = ("player_0", "player_1")
    observation_spaces = dict.fromkeys(possible_agents, spaces.Box(0, 9, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, spaces.Discrete(2))
    turn = 4

    @property
    def agents(self):
        return self.possible_agents if self.turn < 4 else ()

    def acting_agents(self):
        return [self.possible_agents[self.turn % 2]] if self.turn < 4 else []

    def build_observation(self):
        return dict.fromkeys(self.possible_agents, np.array([self.turn], np.float32))

    def reset(self, *, seed=None):
        self.turn = 0
        return MultiAgentReset(self.build_observation(), {})

    def step(self, actions):
        self.turn += 1
        over = dict.fromkeys(self.possible_agents, self.turn == 4)
        return MultiAgentStep(self.build_observation(), {"player_0": 1.0, "player_1": -1.0}, over, {}, {})


def test_what_is_paid_before_the_first_action_is_in_returns_and_in_no_row():
    one = collector(PaidEarly, 2, 8)
    (rollout,) = one.collect(0).values()
    (agents,) = one.take_ended().agent_returns.values()
    assert np.concatenate(agents).tolist() == [[4.0, -4.0]] * 4
    rewards = {(t.agent_id, t.steps[0], tuple(t.reward.tolist())) for t in rollout.trajectories()}
    assert rewards == {("player_0", 0, (2.0, 2.0)), ("player_1", 1, (-2.0, -1.0))}
    zero, flags = np.zeros_like(rollout.reward), (rollout.terminated, rollout.truncated, rollout.valid)
    advantage = gae(rollout.reward, zero, zero, *flags, gamma=1.0, lam=1.0)
    assert advantage[:2].tolist()[0][::2] == [4.0, 4.0]
    assert advantage[:2].tolist()[1][1::2] == [-3.0, -3.0]


def test_agents_that_wait_for_their_turn_are_not_valid_but_their_rewards_count():
    rollouts = collector("relayrl.testing.toy_environments:TakingTurns", 1, 12).collect(0)
    for rollout in rollouts.values():
        assert not rollout.valid.all()
        assert rollout.valid.any()
        zero = np.zeros_like(rollout.reward)
        flags = (rollout.terminated, rollout.truncated, rollout.valid)
        advantage = gae(rollout.reward, zero, zero, *flags, gamma=1.0, lam=1.0)
        for lane in range(rollout.num_lanes):
            first_end = int(np.flatnonzero(rollout.ended[:, lane])[0])
            first_valid = int(np.flatnonzero(rollout.valid[:, lane])[0])
            total = rollout.reward[first_valid : first_end + 1, lane].sum()
            assert advantage[first_valid, lane] == pytest.approx(total)


def test_groups_of_different_agents_get_rollouts_of_their_own():
    rollouts = collector("relayrl.testing.toy_environments:DyingAgents", 2, 20).collect(0)
    assert len(rollouts) > 1
    for rollout in rollouts.values():
        assert rollout.num_lanes == 2 * len(rollout.header.agent_ids)


def test_an_env_that_fails_leaves_a_void_truncated_row():
    options = {"at_step": 3, "how": "raise", "terminate_at": 5}
    one = collector(
        "relayrl.testing.toy_environments:Crashing",
        1,
        6,
        options=options,
        on_failure=FailurePolicy.RESTART,
        max_restarts_per_minute=100,
    )
    rollout = one.collect(0)["agent"]
    failed = np.flatnonzero(rollout.failed[:, 0])
    assert len(failed) > 0
    assert not rollout.valid[failed, 0].any()
    assert rollout.truncated[failed, 0].all()
    assert not rollout.terminated.any()
    returns, _ = one.take_episodes()
    assert returns == []
