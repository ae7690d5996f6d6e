"""Images in replay: every frame once, and every observation comes out as it went in."""

import uuid

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.data.columns import LaneHeader, Rollout, Successors
from relayrl.data.row_rules import rows_with_successor
from relayrl.training.replay import joint_replay
from relayrl.training.replay.joint_replay import JointReplay

SIDE, GAMMA, FRAME = 32, 0.9, (32, 32)


def stack_first(frames):
    """Gymnasium's FrameStackObservation: [S, H, W], newest last."""
    return np.stack(frames)


def stack_last(frames):
    """Stable-Baselines3's VecFrameStack: [H, W, S]."""
    return np.stack(frames, -1)


def newest_first(frames):
    return np.stack(frames[::-1])


def folded_colours(frames):
    """RGB frames side by side in the channels: [H, W, 3 S]."""
    return np.concatenate([np.stack([frame, frame + np.uint8(1), frame + np.uint8(2)], -1) for frame in frames], -1)


def no_stack(frames):
    """The newest frame in three colours."""
    return np.stack([frames[-1], frames[-1] // 2, frames[-1] // 3], -1)


def real_numbers(frames):
    return np.stack(frames).astype(np.float32) / np.float32(255)


LAYOUTS = (stack_first, stack_last, newest_first, folded_colours, no_stack, real_numbers)


class Film:
    """Lanes of random frames, cut into blocks; episodes begin with one frame repeated, or with black ones."""

    def __init__(self, layout, num_lanes, seed=0, pads_black=False, end_chance=0.15):
        self._rng, self._layout, self._pads_black = np.random.default_rng(seed), layout, pads_black
        self._end_chance, self._stacks = end_chance, [self._begin() for _ in range(num_lanes)]

    def _frame(self):
        return self._rng.integers(0, 256, FRAME, np.uint8)

    def _begin(self):
        first = self._frame()
        return [np.zeros_like(first) if self._pads_black else first] * 3 + [first]

    def block(self, num_steps, num_agents=1):
        num_lanes = len(self._stacks)
        obs, following = [], []
        ends = self._rng.random((num_steps, num_lanes)) < self._end_chance
        for t in range(num_steps):
            obs.append(np.stack([self._layout(stack) for stack in self._stacks]))
            self._stacks = [[*stack[1:], self._frame()] for stack in self._stacks]
            following.append(np.stack([self._layout(stack) for stack in self._stacks]))
            self._stacks = [self._begin() if ended else s for s, ended in zip(self._stacks, ends[t], strict=True)]
        obs, following = np.stack(obs), np.stack(following)
        top = 1.0 if obs.dtype == np.float32 else 255
        space = spaces.Box(0, top, obs.shape[2:], obs.dtype.type)
        num_envs = num_lanes // num_agents
        agents = tuple(f"agent_{n}" for n in range(num_agents))
        env_ids = tuple(uuid.UUID(int=b) for b in range(num_envs))
        ends = np.repeat(ends[:, ::num_agents], num_agents, axis=1)
        step, lane = np.nonzero(rows_with_successor(ends))
        no = np.zeros(ends.shape, bool)
        return Rollout(
            header=LaneHeader("agent", env_ids, agents, space, spaces.Discrete(2)),
            obs=obs,
            action=np.zeros(ends.shape, np.int64),
            reward=self._rng.random(ends.shape, np.float32),
            terminated=ends,
            truncated=no,
            valid=~no,
            failed=no,
            policy_version=np.zeros(ends.shape, np.int64),
            first_episode=np.zeros(num_lanes, np.int64),
            first_step=np.zeros(num_lanes, np.int64),
            successors=Successors(step, lane, following[step, lane]),
        )


def pair(monkeypatch, capacity, num_envs, **options):
    """A replay, and one that keeps every observation whole."""
    return JointReplay(capacity, num_envs, **options), _Whole(monkeypatch, capacity, num_envs, **options)


class _Whole:
    def __init__(self, monkeypatch, *args, **options):
        self._monkeypatch, self.replay = monkeypatch, JointReplay(*args, **options)

    def add(self, rollouts):
        with self._monkeypatch.context() as patch:
            patch.setattr(joint_replay, "frame_stores", lambda *_: {})
            self.replay.add(rollouts)


def samples(replay, seed, **options):
    return replay.sample(40, np.random.default_rng(seed), gamma=GAMMA, **options)


def assert_equal(ours, theirs):
    assert np.array_equal(ours.rows, theirs.rows)
    for name, own in ours.groups.items():
        other = theirs.groups[name]
        for field in ("obs", "next_obs", "reward", "discount"):
            left, right = np.asarray(getattr(own, field)), np.asarray(getattr(other, field))
            assert left.shape == right.shape
            assert left.dtype == right.dtype
            assert np.array_equal(left, right), field


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_step_returns", [1, 3])
def test_what_is_drawn_is_what_was_seen(monkeypatch, layout, num_step_returns):
    ours, whole = pair(monkeypatch, 60, 3, priority_exponent=0.6)
    film = Film(layout, 3, pads_black=num_step_returns == 3)
    for i, num_steps in enumerate((1, 1, 5, 2, 7, 1, 9, 4, 1)):  # the ring comes round
        block = film.block(num_steps)
        ours.add({"agent": block})
        whole.add({"agent": block})
        drawn = [samples(replay, i, num_step_returns=num_step_returns) for replay in (ours, whole.replay)]
        assert_equal(*drawn)
        for replay in (ours, whole.replay):
            replay.set_priorities(drawn[0].rows, np.linspace(0.0, 2.0, 40))


def test_agents_of_one_environment_lie_side_by_side(monkeypatch):
    ours, whole = pair(monkeypatch, 20, 2)
    film = Film(stack_first, 6)
    for i in range(8):
        block = film.block(3, num_agents=3)
        ours.add({"agent": block})
        whole.add({"agent": block})
        assert_equal(samples(ours, i), samples(whole.replay, i))


@pytest.mark.parametrize("layout", [stack_first, stack_last, newest_first])
def test_a_stacked_frame_is_kept_once(layout):
    capacity = 1_000
    replay, film = JointReplay(capacity, 2), Film(layout, 2, end_chance=0.02)
    for _ in range(capacity // 2 // 20 + 10):
        replay.add({"agent": film.block(20)})
    # What Stable-Baselines3 keeps: each stack of four twice, before and after the step.
    whole = capacity * 2 * 4 * SIDE * SIDE
    assert replay.num_bytes() < whole / 6


def test_memory_does_not_grow_once_the_ring_is_full():
    replay, film = JointReplay(200, 2), Film(stack_first, 2)
    sizes = []
    for _ in range(60):
        replay.add({"agent": film.block(10)})
        sizes.append(replay.num_bytes())
    assert max(sizes[30:]) <= 1.1 * sizes[15]


def test_colours_without_a_stack_are_kept_once_not_twice():
    replay, film = JointReplay(200, 2), Film(no_stack, 2, end_chance=0.0)
    for _ in range(10):
        replay.add({"agent": film.block(10)})
    assert replay.num_bytes() < 200 * 2 * 3 * SIDE * SIDE / 1.7


@pytest.mark.parametrize("layout", [stack_last, no_stack])
def test_a_saved_replay_goes_on_as_it_would_have(layout):
    film, replay = Film(layout, 2), JointReplay(50, 2, priority_exponent=0.5)
    for num_steps in (7, 1, 11, 30 // 2):
        replay.add({"agent": film.block(num_steps)})
    state = replay.get_state()
    other = JointReplay(50, 2, priority_exponent=0.5)
    space = film.block(1).header.observation_space
    other.set_state(state, {"agent": (space, spaces.Discrete(2))})
    for i in range(12):
        assert_equal(samples(other, i, num_step_returns=2), samples(replay, i, num_step_returns=2))
        block = film.block(5)
        replay.add({"agent": block})
        other.add({"agent": block})
    assert other.num_bytes() <= 1.3 * replay.num_bytes()


def test_a_saved_replay_holds_each_frame_once():
    film, replay = Film(stack_first, 2, end_chance=0.0), JointReplay(200, 2)
    for _ in range(10):
        replay.add({"agent": film.block(10)})
    saved = sum(array.nbytes for array in replay.get_state()["arrays"].values())
    assert saved < 1.2 * 200 * SIDE * SIDE


def test_a_smaller_ring_takes_the_newest(monkeypatch):
    film, replay = Film(stack_first, 2), JointReplay(60, 2)
    for _ in range(6):
        replay.add({"agent": film.block(5)})
    small = JointReplay(20, 2)
    block = film.block(1)
    small.set_state(replay.get_state(), {"agent": (block.header.observation_space, spaces.Discrete(2))})
    fresh = JointReplay(20, 2)
    fresh.set_state(small.get_state(), {"agent": (block.header.observation_space, spaces.Discrete(2))})
    assert len(small) == 20
    assert_equal(samples(small, 0), samples(fresh, 0))
    assert small.num_bytes() < replay.num_bytes() * 1.5


def test_a_replay_that_was_saved_with_whole_images_is_read(monkeypatch):
    ours, whole = pair(monkeypatch, 40, 2)
    film = Film(stack_first, 2)
    for _ in range(6):
        block = film.block(5)
        ours.add({"agent": block})
        whole.add({"agent": block})
    read = JointReplay(40, 2)
    read.set_state(whole.replay.get_state(), {"agent": (block.header.observation_space, spaces.Discrete(2))})
    assert_equal(samples(read, 3), samples(ours, 3))
    assert read.num_bytes() <= 1.2 * ours.num_bytes()
