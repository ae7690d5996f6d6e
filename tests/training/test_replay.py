"""Joint replay against a list of steps kept in plain Python, and what it costs."""

import dataclasses
import uuid
from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.bench.replay_sampling import filled_replay, pendulum_rollout
from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import rows_with_successor
from relayrl.errors import CheckpointError, ConfigError
from relayrl.training.replay.joint_replay import JointReplay, JointTransitions

GAMMA = 0.9


def block(obs, reward, ends, valid, following, num_envs: int) -> Rollout:
    """Rows `[T, L]` with scalar observations; `ends` is 0 running, 1 terminated, 2 truncated; `following` [T, L] came next."""
    T, L = reward.shape
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    agents = tuple(f"agent_{n}" for n in range(L // num_envs))
    step, lane = np.nonzero(rows_with_successor(ends > 0))
    return Rollout(
        header=LaneHeader("agent", tuple(uuid.UUID(int=b) for b in range(num_envs)), agents, space, space),
        obs=obs[..., None],
        action=-obs[..., None],
        reward=reward,
        terminated=ends == 1,
        truncated=ends == 2,
        valid=valid,
        failed=(ends == 2) & ~valid,
        policy_version=np.zeros((T, L), np.int64),
        first_episode=np.zeros(L, np.int64),
        first_step=np.zeros(L, np.int64),
        successors=Successors(step, lane, following[step, lane][:, None]),
    )


@dataclasses.dataclass
class History:
    """All steps of all lanes, `[T, L]`, every observation a number of its own."""

    obs: np.ndarray
    reward: np.ndarray
    ends: np.ndarray
    valid: np.ndarray
    following: np.ndarray

    @classmethod
    def random(cls, rng: np.random.Generator, T: int, L: int) -> "History":
        ends = rng.choice([0, 0, 0, 1, 2], (T, L))
        valid = np.ones((T, L), bool)
        for lane in range(L):
            absent = False
            for t in range(T):
                # Agents appear late or stay away between episodes, but do not pause within one.
                absent = rng.random() < (0.6 if absent else 0.3) if t == 0 or absent or ends[t - 1, lane] else False
                valid[t, lane] = not absent
                if absent:
                    ends[t, lane] = 0
        # A crash: truncated, and not valid.
        valid &= ~((ends == 2) & (rng.random((T, L)) < 0.2))
        obs = np.arange(1, T * L + 1, dtype=np.float32).reshape(T, L)
        following = np.where(ends > 0, -obs, obs + L).astype(np.float32)
        return cls(obs, rng.integers(-5, 6, (T, L)).astype(np.float32), ends, valid, following)

    def blocks(self, cuts: list[int], num_envs: int):
        columns = dataclasses.astuple(self)
        return [block(*(c[a:b] for c in columns), num_envs) for a, b in pairwise(cuts)]

    def transition(self, t: int, lane: int, num_steps: int, num_agents: int) -> tuple[float, float, float]:
        """Discounted reward, discount and next observation of `num_steps` steps from `t`, as far as they are known.

        They stop for all agents of an environment where one ends, and before a step on which the environment failed.
        """
        env = slice(lane // num_agents * num_agents, lane // num_agents * num_agents + num_agents)
        total, k = 0.0, 0
        while True:
            row = t + k, lane
            total += GAMMA**k * float(self.reward[row]) * bool(self.valid[row])
            k += 1
            goes_on = k < num_steps and t + k < len(self.obs) and not self.ends[t + k - 1, env].any()
            if not goes_on or ((self.ends[t + k, env] > 0) & ~self.valid[t + k, env]).any():
                return total, 0.0 if self.ends[row] == 1 else GAMMA**k, float(self.following[row])


class InOrder:
    """Stands in for a generator: row after row from the ring's beginning."""

    def integers(self, high: int, size: int) -> np.ndarray:
        return np.arange(size) % high


def everything(replay: JointReplay, num_step_returns: int = 1) -> JointTransitions:
    return replay.sample(len(replay), InOrder(), gamma=GAMMA, num_step_returns=num_step_returns)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_envs=st.integers(1, 3),
    num_agents=st.integers(1, 2),
    steps_kept=st.integers(1, 12),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    num_steps=st.integers(1, 4),
)
def test_replay_holds_what_a_list_of_the_newest_steps_holds(seed, num_envs, num_agents, steps_kept, lengths, num_steps):
    num_steps, lengths = min(num_steps, steps_kept), [min(n, steps_kept) for n in lengths]
    history = History.random(np.random.default_rng(seed), sum(lengths), num_envs * num_agents)
    replay, kept = JointReplay(steps_kept * num_envs, num_envs), deque(maxlen=steps_kept)
    for rollout in history.blocks([0, *np.cumsum(lengths)], num_envs):
        replay.add({"agent": rollout})
    kept.extend(range(sum(lengths)))
    got = everything(replay, num_steps).groups["agent"]
    seen = {}
    for m in range(len(replay)):
        # Agents of one transition are of the same environment and step.
        t, lane = divmod(int(got.obs[m, 0, 0]) - 1, num_envs * num_agents)
        seen[t, lane] = m
        for n in range(num_agents):
            row = t, lane + n
            reward, discount, next_obs = history.transition(*row, num_steps, num_agents)
            assert got.obs[m, n] == history.obs[row]
            assert got.action[m, n] == -history.obs[row]
            assert got.valid[m, n] == history.valid[row]
            if history.valid[row]:
                assert got.reward[m, n] == pytest.approx(reward, abs=1e-5)
                assert got.discount[m, n] == pytest.approx(discount, abs=1e-6)
                assert got.next_obs[m, n] == next_obs
    assert sorted(seen) == [(t, b * num_agents) for t in kept for b in range(num_envs)]


def running(num_steps: int, num_envs: int = 1, first: int = 1) -> Rollout:
    """Steps without an end; observations and rewards count from `first`."""
    obs = np.arange(first, first + num_steps * num_envs, dtype=np.float32).reshape(num_steps, num_envs)
    return block(obs, obs, np.zeros(obs.shape, int), np.ones(obs.shape, bool), obs + num_envs, num_envs)


def test_three_step_return_by_hand():
    replay = JointReplay(8, 1)
    replay.add({"agent": running(4)})
    got = everything(replay, 3).groups["agent"]
    # Row 0: 1 + .9·2 + .81·3, then Q of observation 4. The last row has one reward only.
    assert got.reward[:, 0] == pytest.approx([5.23, 2 + 0.9 * 3 + 0.81 * 4, 3 + 0.9 * 4, 4])
    assert got.discount[:, 0] == pytest.approx([0.729, 0.729, 0.81, 0.9])
    assert got.next_obs[:, 0, 0].tolist() == [4, 5, 5, 5]


def test_returns_go_on_into_the_next_block():
    replay = JointReplay(8, 2)
    replay.add({"agent": running(1, 2, first=1)})
    replay.add({"agent": running(1, 2, first=3)})
    got = everything(replay, 2).groups["agent"]
    assert got.reward[:, 0] == pytest.approx([1 + 0.9 * 3, 2 + 0.9 * 4, 3, 4])


def test_returns_stop_at_the_rings_head():
    replay = JointReplay(4, 1)
    replay.add({"agent": running(4, first=1)})
    replay.add({"agent": running(2, first=5)})
    got = everything(replay, 2).groups["agent"]
    # In memory: 5, 6, 3, 4. After 6, the newest, lies 3, the oldest.
    assert got.obs[:, 0, 0].tolist() == [5, 6, 3, 4]
    assert got.reward[:, 0] == pytest.approx([5 + 0.9 * 6, 6, 3 + 0.9 * 4, 4 + 0.9 * 5])


def test_a_truncated_step_bootstraps_from_what_was_seen_last():
    # Rows 0 (truncated) and 1 (terminated) end with −10 and −20, not with the next episode's observations.
    columns = [np.array(c, np.float32)[:, None] for c in ([1, 2, 3], [1, 1, 1], [-10, -20, 4])]
    ends = np.array([2, 1, 0])[:, None]
    replay = JointReplay(4, 1)
    replay.add({"agent": block(columns[0], columns[1], ends, np.ones((3, 1), bool), columns[2], 1)})
    got = everything(replay, 3).groups["agent"]
    assert got.next_obs[:, 0, 0].tolist() == [-10, -20, 4]
    assert got.discount[:, 0] == pytest.approx([0.9, 0.0, 0.9])
    assert got.reward[:, 0].tolist() == [1, 1, 1]


def test_groups_of_one_sample_are_of_the_same_step():
    replay = JointReplay(64, 2)
    for first in range(1, 200, 20):
        replay.add({"wolf": running(10, 2, first), "sheep": running(10, 2, 1000 + first)})
    got = replay.sample(500, np.random.default_rng(0), gamma=GAMMA)
    assert (got.groups["sheep"].obs - got.groups["wolf"].obs == 1000).all()


def test_sampled_columns_are_copies():
    replay = JointReplay(4, 1)
    replay.add({"agent": running(2)})
    got = everything(replay).groups["agent"]
    for column in (got.obs, got.action, got.reward, got.next_obs):
        column[:] = 99.0
    assert everything(replay).groups["agent"].obs[:, 0, 0].tolist() == [1, 2]
    assert everything(replay).groups["agent"].reward[:, 0].tolist() == [1, 2]


def test_capacity_is_whole_steps_of_all_envs():
    assert JointReplay(10, 4).capacity == 12


def test_a_block_larger_than_the_replay_is_refused():
    with pytest.raises(ConfigError, match="block of 5 transitions"):
        JointReplay(4, 1).add({"agent": running(5)})


def test_uniform_draws_are_uniform():
    replay = JointReplay(16, 1)
    replay.add({"agent": running(10)})
    counts = np.bincount(replay.sample(100_000, np.random.default_rng(0), gamma=GAMMA).rows, minlength=16)
    assert counts[10:].sum() == 0
    chi_square = ((counts[:10] - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 21.7  # 99 % of χ² with 9 degrees of freedom


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_state_round_trip_samples_the_same(exponent):
    first, second = (JointReplay(8, 2, priority_exponent=exponent) for _ in range(2))
    for start in (1, 7):
        first.add({"agent": running(3, 2, start)})
    first.set_priorities(np.arange(8), np.arange(8.0))
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    second.set_state(first.get_state(), {"agent": (space, space)})
    first_sample, second_sample = (r.sample(64, np.random.default_rng(0), gamma=GAMMA) for r in (first, second))
    assert (first_sample.rows == second_sample.rows).all()
    assert (first_sample.weight == second_sample.weight).all()
    for name in ("obs", "action", "reward", "next_obs", "discount", "valid"):
        columns = [getattr(sample.groups["agent"], name) for sample in (first_sample, second_sample)]
        np.testing.assert_array_equal(*columns)
    for replay in (first, second):
        replay.add({"agent": running(1, 2, 13)})
    samples = [r.sample(64, np.random.default_rng(0), gamma=GAMMA).groups["agent"].obs for r in (first, second)]
    np.testing.assert_array_equal(*samples)


def test_a_million_pendulum_transitions_take_less_than_60_mb():
    replay = JointReplay(1_000_000, 8)
    replay.add({"agent": pendulum_rollout(1, 8)})
    assert replay.num_bytes() < 60e6
    # Observation, action, reward and successor at 4 bytes a number, and three flags, aligned to 4 bytes.
    assert replay.num_bytes() == 1_000_000 * (4 * (3 + 1 + 1 + 3) + 4)


SPACE = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def test_the_next_mask_is_that_of_the_next_block():
    masks, replay = np.array([[[True, False]], [[False, True]]]), JointReplay(4, 1)
    for t in range(2):
        replay.add({"agent": dataclasses.replace(running(1, first=t + 1), action_mask=masks[t : t + 1])})
    got = everything(replay).groups["agent"]
    assert got.mask[:, 0].tolist() == [[True, False], [False, True]]
    assert got.next_mask[0, 0].tolist() == [False, True]


def masked_block(ends: list[int], masks: list[list[int]], last: list[list[int]] | None) -> Rollout:
    """One lane of two actions; `last` are the masks after ends, and after the last row."""
    T, action_space = len(ends), spaces.Discrete(2)
    obs = np.arange(1.0, T + 1.0, dtype=np.float32)[:, None]
    one = block(obs, obs, np.array(ends)[:, None], np.ones((T, 1), bool), obs + 1, 1)
    header = dataclasses.replace(one.header, action_space=action_space)
    mask = None if last is None else np.array(last, bool)
    successors = dataclasses.replace(one.successors, action_mask=mask)
    action = np.zeros((T, 1), np.int64)
    columns = {"action": action, "action_mask": np.array(masks, bool)[:, None], "successors": successors}
    return dataclasses.replace(one, header=header, **columns)


LEFT, RIGHT, BOTH = [1, 0], [0, 1], [1, 1]


@pytest.mark.parametrize("num_steps", [1, 2])
def test_the_next_mask_after_an_end_is_that_of_the_final_observation(num_steps):
    replay = JointReplay(8, 1)
    replay.add({"agent": masked_block([0, 2, 0, 2, 0], [LEFT, LEFT, RIGHT, RIGHT, LEFT], [RIGHT, LEFT, RIGHT])})
    got = everything(replay, num_steps).groups["agent"]
    expected = {1: [LEFT, RIGHT, RIGHT, LEFT, RIGHT], 2: [RIGHT, RIGHT, LEFT, LEFT, RIGHT]}[num_steps]
    assert got.next_mask[:, 0].astype(int).tolist() == expected


def test_a_final_mask_that_is_unknown_or_empty_allows_everything():
    replay = JointReplay(8, 1)
    replay.add({"agent": masked_block([2, 2], [LEFT, LEFT], None)})
    replay.add({"agent": masked_block([2, 2], [LEFT, LEFT], [[0, 0], RIGHT])})
    assert everything(replay).groups["agent"].next_mask[:, 0].astype(int).tolist() == [BOTH, BOTH, BOTH, RIGHT]


def test_a_state_from_before_final_masks_were_kept_is_read():
    first, second = JointReplay(8, 1), JointReplay(8, 1)
    first.add({"agent": masked_block([0, 2, 0], [LEFT, RIGHT, LEFT], [RIGHT, RIGHT])})
    state = first.get_state()
    del state["arrays"]["agent/next_mask"]
    second.set_state(state, {"agent": (SPACE, spaces.Discrete(2))})
    second.add({"agent": masked_block([0], [RIGHT], [LEFT])})
    got = everything(second).groups["agent"].next_mask[:, 0]
    assert got.astype(int).tolist() == [RIGHT, BOTH, RIGHT, LEFT]


def test_returns_do_not_run_on_where_envs_began_anew():
    first, second = JointReplay(8, 1), JointReplay(8, 1)
    first.add({"agent": running(2)})
    second.set_state(first.get_state(), {"agent": (SPACE, SPACE)})
    second.cut()
    second.add({"agent": running(2, first=100)})
    assert everything(second, 2).groups["agent"].reward[1, 0] == 2


def test_a_larger_replay_takes_over_a_wrapped_one():
    small, large = JointReplay(4, 1), JointReplay(8, 1)
    small.add({"agent": running(4)})
    small.add({"agent": running(2, first=5)})
    large.set_state(small.get_state(), {"agent": (SPACE, SPACE)})
    large.add({"agent": running(2, first=7)})
    assert sorted(everything(large).groups["agent"].obs[:, 0, 0].tolist()) == [3, 4, 5, 6, 7, 8]


def test_a_smaller_replay_keeps_the_newest():
    large, small = JointReplay(8, 1), JointReplay(2, 1)
    large.add({"agent": running(5)})
    small.set_state(large.get_state(), {"agent": (SPACE, SPACE)})
    assert everything(small).groups["agent"].obs[:, 0, 0].tolist() == [4, 5]


def test_another_number_of_envs_is_refused():
    two = JointReplay(8, 2)
    two.add({"agent": running(2, num_envs=2)})
    with pytest.raises(CheckpointError, match="2 environments"):
        JointReplay(8, 1).set_state(two.get_state(), {"agent": (SPACE, SPACE)})


def test_returns_longer_than_the_ring():
    replay = JointReplay(2, 1)
    replay.add({"agent": running(2)})
    assert everything(replay, 3).groups["agent"].reward[:, 0] == pytest.approx([2.8, 2])


def test_agents_that_take_turns_are_refused():
    obs = np.array([[1], [2], [3]], np.float32)
    waits = np.array([[True], [False], [True]])
    with pytest.raises(ConfigError, match="use ppo or reinforce"):
        JointReplay(4, 1).add({"agent": block(obs, obs, np.zeros((3, 1), int), waits, obs + 1, 1)})


def two_agents(ends, valid, rows=slice(None)) -> Rollout:
    """Steps of two agents in one environment; observations count up."""
    obs = np.arange(1, 2 * len(ends) + 1, dtype=np.float32).reshape(-1, 2)
    columns = (obs, obs, np.array(ends), np.array(valid, bool), obs + 2)
    return block(*(column[rows] for column in columns), 1)


SEEN_NEXT = {
    "one died": ([[0, 1], [0, 0], [0, 0]], [[1, 1], [1, 0], [1, 0]], [[1, 0], [1, 0], [1, 0]]),
    "one was truncated": ([[0, 2], [0, 0], [0, 0]], [[1, 1], [1, 0], [1, 0]], [[1, 0], [1, 0], [1, 0]]),
    "the environment was truncated": ([[0, 0], [2, 2], [0, 0]], [[1, 1], [1, 1], [1, 1]], [[1, 1], [1, 1], [1, 1]]),
    "one died before that": ([[0, 1], [2, 0], [0, 0]], [[1, 1], [1, 0], [1, 1]], [[1, 0], [1, 0], [1, 1]]),
    "one appeared": ([[0, 0], [0, 0], [0, 0]], [[1, 0], [1, 1], [1, 1]], [[1, 1], [1, 1], [1, 1]]),
    "one died on the newest row": ([[0, 0], [0, 0], [0, 1]], [[1, 1], [1, 1], [1, 1]], [[1, 1], [1, 1], [1, 0]]),
    "the environment failed": ([[0, 0], [2, 2], [0, 0]], [[1, 1], [0, 0], [1, 1]], [[1, 1], [0, 0], [1, 1]]),
}


@pytest.mark.parametrize("case", SEEN_NEXT)
@pytest.mark.parametrize("cuts", [(0, 3), (0, 1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("groups", [1, 2])
def test_others_see_next_who_is_still_there(case, cuts, groups):
    ends, valid, seen = SEEN_NEXT[case]
    replay = JointReplay(3, 1)
    for rows in (slice(*pair) for pair in pairwise(cuts)):
        rollout = two_agents(ends, valid, rows)
        replay.add({"agent": rollout} if groups == 1 else {"wolf": lane(rollout, 0), "sheep": lane(rollout, 1)})
    got = [group.next_valid for group in everything(replay).groups.values()]
    np.testing.assert_array_equal(np.concatenate(got, 1), np.array(seen, bool))
    copy = JointReplay(3, 1)
    names = replay.get_state()["arrays"]
    copy.set_state(replay.get_state(), {name.split("/")[0]: (SPACE, SPACE) for name in names})
    for name, group in everything(copy).groups.items():
        np.testing.assert_array_equal(group.next_valid, everything(replay).groups[name].next_valid)


def lane(rollout: Rollout, number: int) -> Rollout:
    """One agent's rows as a group of their own."""
    own = rollout.successors.lane == number
    successors = Successors(rollout.successors.step[own], np.zeros(own.sum(), np.int64), rollout.successors.obs[own])
    names = ("obs", "action", "reward", "terminated", "truncated", "valid", "failed", "policy_version")
    columns = {name: getattr(rollout, name)[:, [number]] for name in names}
    first = {name: getattr(rollout, name)[[number]] for name in ("first_episode", "first_step")}
    header = dataclasses.replace(rollout.header, agent_ids=(rollout.header.agent_ids[number],))
    return dataclasses.replace(rollout, header=header, successors=successors, **columns, **first)


def test_after_several_steps_others_do_not_see_who_died_within_them():
    replay = JointReplay(4, 1)
    replay.add({"agent": two_agents([[0, 0], [0, 1], [0, 0], [0, 0]], [[1, 1], [1, 1], [1, 0], [1, 0]])})
    got = everything(replay, 3).groups["agent"]
    # Returns stop where one ends: those of rows 0 and 1 after row 1, those of 2 and 3 after the newest row.
    np.testing.assert_array_equal(got.next_valid, np.array([[1, 0]] * 4, bool))
    assert got.next_obs[:, 0, 0].tolist() == [5, 5, 9, 9]


def test_rows_behind_a_transition_are_looked_at_only_where_they_matter():
    replay = filled_replay(1000, pendulum_rollout(125, 8), 0.0)
    alone = replay.sample(64, np.random.default_rng(0), gamma=GAMMA).groups["agent"]
    assert not replay._looks_ahead
    replay._looks_ahead = True
    looking = replay.sample(64, np.random.default_rng(0), gamma=GAMMA).groups["agent"]
    for name in ("obs", "action", "reward", "next_obs", "discount", "valid", "next_valid"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(looking, name))
        assert getattr(alone, name).dtype == getattr(looking, name).dtype


def test_a_replay_that_does_not_fit_the_memory_says_how_large_it_is():
    with pytest.raises(
        ConfigError, match=r"a replay of 1,000,000,000,000,000 transitions of .* GiB; lower buffer_size"
    ):
        JointReplay(10**15, 1).add({"agent": pendulum_rollout(1, 1)})
