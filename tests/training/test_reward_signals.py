"""Reward signals: what they see of a rollout, what they add, what they learn, on every kind of space."""

import re
import uuid
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.trees import allocate, map_tree
from relayrl.training.signals.novelty import REWARD_CLIP, ReturnScale
from relayrl.training.signals.reward_signals import RewardSignal, RewardSignals
from relayrl.training.signals.signal_registry import SIGNALS, SignalGroup, make_signal
from relayrl.training.signals.transitions import Transitions, following_rows

NOVELTY = ("rnd", "curiosity")
PLAIN = spaces.Box(-1, 1, (1,), np.float32)


def rollout_of(obs_space, action_space, valid, ended=(), seed=0) -> Rollout:
    """Random observations and actions; `ended` are (t, lane) that terminate, and have a successor besides the last row."""
    rng = np.random.default_rng(seed)
    valid = np.array(valid, bool)
    T, L = valid.shape
    terminated = np.zeros((T, L), bool)
    for t, lane in ended:
        terminated[t, lane] = True
    has_successor = terminated.copy()
    has_successor[-1] = True
    step, lane = np.nonzero(has_successor)

    def drawn(space, leading):
        target = allocate(space, leading)
        space.seed(int(rng.integers(1 << 30)))
        for where in np.ndindex(*leading):
            sample = space.sample()
            map_tree(lambda leaf, own, where=where: leaf.__setitem__(where, own), target, sample)
        return target

    header = LaneHeader("agent", tuple(uuid.uuid4() for _ in range(L)), ("agent",), obs_space, action_space)
    zeros = np.zeros((T, L), np.int64)
    return Rollout(
        header,
        drawn(obs_space, (T, L)),
        drawn(action_space, (T, L)),
        np.ones((T, L), np.float32),
        terminated,
        np.zeros((T, L), bool),
        valid,
        np.zeros((T, L), bool),
        zeros,
        np.zeros(L, np.int64),
        np.zeros(L, np.int64),
        Successors(step, lane, drawn(obs_space, (len(step),))),
    )


def made(name, rollout, seed=3, **options) -> RewardSignal:
    return make_signal(name, options, [SignalGroup(rollout.header, 0.99, seed)])


def test_what_follows_a_row_is_the_lanes_next_action_or_its_successor():
    # lane 0 acts always and ends on row 1; lane 1 waits on rows 1 and 2
    rollout = rollout_of(PLAIN, PLAIN, [[1, 1], [1, 0], [1, 0], [1, 1]], ended=[(1, 0)])
    assert following_rows(rollout)[:, 0].tolist() == [2, 8, 6, 9]  # 8: successor of row 1; 9, 10: of the last row
    assert following_rows(rollout)[[0, 3], 1].tolist() == [7, 10]
    (batch,) = Transitions(rollout).batches(100)
    assert batch.row.tolist() == [0, 1, 2, 4, 6, 7]
    np.testing.assert_array_equal(batch.next_obs[2], rollout.successors.obs[0])  # row (1, 0) ends
    np.testing.assert_array_equal(batch.next_obs[1], rollout.obs[3, 1])  # row (0, 1) goes on after it waited


def test_rewards_are_divided_by_the_deviation_of_their_returns():
    scale = ReturnScale(num_lanes=1, gamma=0.5)
    reward, valid = np.array([[4.0], [9.0], [2.0]]), np.array([[True], [False], [True]])
    scaled = scale(reward * valid, valid)
    # returns 4 and 0.5 · 4 + 2 = 4 have no deviation: everything is clipped
    assert scaled[:, 0].tolist() == [REWARD_CLIP, 0.0, REWARD_CLIP]
    scaled = scale(np.array([[6.0]]), np.array([[True]]))  # 0.5 · 4 + 6 = 8; std(4, 4, 8) = √(32/9)
    assert scaled[0, 0] == pytest.approx(6.0 / np.sqrt(32 / 9), rel=1e-6)


class Fixed(RewardSignal):
    """Adds a number, and remembers what it saw and when."""

    def __init__(self, number: float) -> None:
        self.number, self.log = number, []

    def evaluate(self, rollout):
        self.log.append(("evaluate", rollout.reward.copy()))
        return np.full(rollout.reward.shape, self.number)

    def learn(self, rollout):
        self.log.append(("learn", rollout.reward.copy()))
        return {"loss": 7.0}


def test_signals_are_added_where_agents_acted_and_the_environments_reward_is_scaled_everywhere():
    rollout = rollout_of(PLAIN, PLAIN, [[1, 0], [1, 1]])
    first, second = Fixed(10.0), Fixed(4.0)
    signals = RewardSignals({"first": (first, 1.0), "second": (second, 0.5)}, extrinsic_strength=0.25)
    metrics = signals.add_to({"agent": rollout})
    assert rollout.reward.tolist() == [[12.25, 0.25], [12.25, 12.25]]
    assert metrics == {
        "signals/extrinsic/reward_mean": 0.25,
        "signals/first/reward_mean": 10.0,
        "signals/first/loss": 7.0,
        "signals/second/reward_mean": 2.0,
        "signals/second/loss": 7.0,
    }
    for signal in (first, second):
        assert [what for what, _ in signal.log] == ["evaluate", "learn"]
        assert all((seen == 1.0).all() for _, seen in signal.log)  # the environment's own


OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
    "tree": spaces.Dict({"place": spaces.Discrete(5, start=2), "near": spaces.Box(-1, 1, (2, 2), np.float32)}),
}
ACTIONS = {
    "discrete": spaces.Discrete(3, start=1),
    "multi-discrete": spaces.MultiDiscrete([2, 4]),
    "bits": spaces.MultiBinary(3),
    "box": spaces.Box(-1000, 1000, (2,), np.float32),
    "tree": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32))),
}


@pytest.mark.parametrize("name", NOVELTY)
@pytest.mark.parametrize("obs", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_space_is_rewarded_less_the_more_often_it_was_seen(name, obs, action):
    valid = np.ones((24, 2))
    valid[5:9, 1] = 0
    rollout = rollout_of(OBSERVATIONS[obs], ACTIONS[action], valid)
    signal = made(name, rollout, learning_rate=1e-3, batch_size=16, network={"hidden_sizes": [32]})
    first = signal.evaluate(rollout)
    assert first.shape == (24, 2)
    assert first.dtype == np.float32
    assert (first[5:9, 1] == 0).all()
    assert (first[valid > 0] > 0).all()
    losses = [signal.learn(rollout)["loss"] for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0]
    assert signal.evaluate(rollout)[valid > 0].mean() < 0.8 * first[valid > 0].mean()


@pytest.mark.parametrize("name", NOVELTY)
def test_what_was_never_seen_is_rewarded_more(name):
    # Observations are one of ten places, of which the signal sees the first five for a while.
    places, action = spaces.Discrete(10), spaces.Discrete(2)
    rollout = rollout_of(places, action, np.ones((64, 2)))
    known, unknown = np.arange(128).reshape(64, 2) % 5, 5 + np.arange(128).reshape(64, 2) % 5
    rollout.successors.obs[...] = 0
    signal = made(name, rollout, learning_rate=1e-3, batch_size=32)
    for _ in range(60):
        rollout.obs[...] = known
        signal.evaluate(rollout)
        signal.learn(rollout)
    rollout.obs[:32], rollout.obs[32:] = known[:32], unknown[32:]
    reward = signal.evaluate(rollout)
    assert reward[33:].mean() > 3 * reward[:31].mean()


@pytest.mark.parametrize("name", NOVELTY)
def test_a_signal_goes_on_from_its_state_bit_for_bit(name):
    rollouts = [rollout_of(PLAIN, spaces.Discrete(2), np.ones((40, 2)), seed=seed) for seed in range(4)]
    one = made(name, rollouts[0])
    for rollout in rollouts[:2]:
        one.evaluate(rollout), one.learn(rollout)
    state = map_tree(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, one.state_dict())
    other = made(name, rollouts[0], seed=4)
    assert (other.evaluate(rollouts[2]) != one.evaluate(rollouts[2])).any()
    one, other = made(name, rollouts[0], seed=5), made(name, rollouts[0], seed=6)
    one.load_state_dict(state), other.load_state_dict(state)
    for rollout in rollouts[2:]:
        np.testing.assert_array_equal(one.evaluate(rollout), other.evaluate(rollout))
        assert one.learn(rollout) == other.learn(rollout)


@pytest.mark.parametrize("name", NOVELTY)
def test_a_rollout_on_which_nobody_acted_changes_nothing(name):
    rollout = rollout_of(PLAIN, spaces.Discrete(2), np.zeros((4, 2)))
    signal = made(name, rollout)
    assert (signal.evaluate(rollout) == 0.0).all()
    assert signal.learn(rollout) == {}


def test_the_target_of_rnd_never_changes():
    rollout = rollout_of(PLAIN, spaces.Discrete(2), np.ones((16, 2)))
    signal = made("rnd", rollout)
    model = signal.state_dict()["agent"]["model"]
    before = {name: tensor.clone() for name, tensor in model.items()}
    signal.evaluate(rollout), signal.learn(rollout)
    after = signal.state_dict()["agent"]["model"]
    is_same = {name: bool(torch.equal(before[name], after[name])) for name in before}
    assert all(same for name, same in is_same.items() if name.startswith("target."))
    assert not any(same for name, same in is_same.items() if name.startswith("predictor."))


@pytest.mark.parametrize("name", SIGNALS)
def test_the_page_lists_every_option_with_its_default(name):
    page = (Path(__file__).parents[2] / "docs" / "reward-signals.md").read_text()
    section = page.split(f"## `{name}`")[1].split("\n## ")[0]
    listed = dict(re.findall(r"^\| `(\S+)` \| (.+?) \|", section, re.MULTILINE))
    required = {"demo_path": "required"} if name == "gail" else {}
    options = SIGNALS[name].options(**required).model_dump(mode="json")
    network = {f"network.{key}": value for key, value in options.pop("network").items()}
    assert listed == {
        key: f"{value}" if key != "learning_rate" else f"{value:.4f}" for key, value in (options | network).items()
    }
