"""Pages of steps, by agents' calls and by the trajectory builder's: both give what a list of steps per lane gives."""

import uuid
from dataclasses import dataclass, field

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from relayrl.data.columns import LaneHeader
from relayrl.data.steps.step_pages import PAGE_ROWS, StepPages
from relayrl.data.steps.step_rows import ActingLayout
from relayrl.data.steps.trajectory_builder import TrajectoryBuilder
from relayrl.errors import ConfigError

OBS, ACT = spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(4)
LAYOUT = ActingLayout("agent", OBS, ACT, 4, needs_mask=False, has_logp=True, has_value=True)
COLUMNS = ("obs", "action", "logp", "value", "policy_version", "action_mask")
ONE = np.zeros(1, np.float32)
STEP = (ONE, 1, 0.0, 0.0, 0, None, None)


@dataclass
class ListedLane:
    """The rules of cutting, in their plainest form."""

    key: uuid.UUID
    name: str
    max_length: int
    steps: list = field(default_factory=list)
    taken: list = field(default_factory=list)
    episode: int = 0
    first_step: int = 0

    def act(self, step: tuple, reward: float) -> None:
        if self.steps:
            self.steps[-1][1] += reward
        if len(self.steps) == self.max_length:
            length = len(self.steps)
            self.take((False, False, False), step[0], step[-1])
            self.first_step += length
        self.steps.append([step, 0.0])

    def end(self, flags: tuple[bool, bool, bool], final_obs, final_mask) -> None:
        self.take(flags, final_obs, final_mask)
        self.episode, self.first_step = self.episode + 1, 0

    def take(self, flags: tuple[bool, bool, bool], final_obs, final_mask) -> None:
        identity = uuid.uuid5(self.key, f"{self.name}/{self.episode}/{self.first_step}")
        header = (identity, self.key, self.name, "agent", self.episode, self.first_step, *flags)
        mask = [True] * 4 if final_mask is None else final_mask.tolist()
        columns = [[np.asarray(step[i]).tolist() for step, _ in self.steps] for i in range(len(COLUMNS))]
        self.taken.append((header, columns, [reward for _, reward in self.steps], final_obs.tolist(), mask))
        self.steps = []


def as_listed(taken) -> tuple:
    names = ("trajectory_id", "env_id", "agent_id", "group", "episode", "first_step")
    header = tuple(getattr(taken, name) for name in (*names, "terminated", "truncated", "failed"))
    columns = [getattr(taken, name).tolist() for name in COLUMNS]
    return header, columns, taken.reward.tolist(), taken.final_obs.tolist(), taken.final_mask.tolist()


MOVES = st.lists(
    st.tuples(st.sampled_from(["step", "step", "step", "many", "end", "stop"]), st.integers(1, 100)), max_size=30
)


@settings(max_examples=60, deadline=None)
@given(max_length=st.sampled_from([1, 3, 64, 65, 150]), moves=MOVES)
def test_agents_and_builders_give_what_lists_give(max_length, moves):
    pages, L, t = StepPages(LAYOUT, max_length), 3, 0
    lanes = [pages.open_lane(uuid.UUID(int=i + 1), f"actor-{i}") for i in range(L)]
    numbers = np.array([lane.number for lane in lanes])
    for_pages, for_builders = ([ListedLane(lane.key, lane.agent_id, max_length) for lane in lanes] for _ in range(2))
    options = {"max_length": max_length, "mask_width": 4, "with_logp": True, "with_value": True}
    builders = [TrajectoryBuilder(LaneHeader("agent", (x.key,), (x.agent_id,), OBS, ACT), **options) for x in lanes]
    got, built = ([[] for _ in range(L)] for _ in range(2))

    def step(rows: list[int]) -> None:
        nonlocal t
        t += 1
        obs = np.array([[10.0 * t + i] for i in rows], np.float32)
        action, logp = np.array([(t + i) % 4 for i in rows]), np.array([-0.5 * i for i in rows], np.float32)
        mask = np.array([[True, (t + i) % 2 == 0, True, True] for i in rows])
        reward = np.array([float(t + i) if for_pages[i].steps else 0.0 for i in rows], np.float32)
        value = np.full(len(rows), 0.5 * t, np.float32)
        for k, i in enumerate(rows):
            row = (obs[k], action[k], logp[k], value[k], t, mask[k])
            for_pages[i].act(row, float(reward[k]))
            if len(builders[i]):
                builders[i].record_reward(float(t + i))
            for_builders[i].act(row, float(t + i))
            fragment = builders[i].record_action(obs[k], action[k], mask[k], float(logp[k]), 0.5 * t, t)
            built[i] += [] if fragment is None else [fragment]
        if len(rows) == 1:
            (row,) = rows
            cut = pages.append_one(
                lanes[row], (obs[0], action[0], logp[0], value[0], t, mask[0], None), float(reward[0])
            )
        else:
            cut = pages.append(numbers[rows], (obs, action, logp, value, t, mask, None), reward)
        for key, trajectory in cut:
            got[key.int - 1].append(trajectory)

    for move, number in moves:
        i, final = number % L, np.array([float(number)], np.float32)
        if move == "step":
            step([i])
        elif move == "many":
            for _ in range(number % 70):
                step([0, 1, 2] if number % 2 else [2, 0])
        elif move == "end" and for_pages[i].steps and for_builders[i].steps:
            mask = np.arange(4) == number % 4 if number % 2 else None
            for listed in (for_pages[i], for_builders[i]):
                listed.steps[-1][1] += 7.0
                listed.end((True, False, False), final, mask)
            builders[i].record_reward(7.0)
            built[i].append(builders[i].end(True, False, final, mask))
            got[i].append(pages.end(lanes[i], 7.0, True, False, final, mask))
        elif move == "stop" and for_pages[i].steps and for_builders[i].steps:
            last = for_pages[i].steps[-1][0]
            for_pages[i].end((False, True, True), last[0], last[-1])
            got[i].append(pages.interrupt(lanes[i]))
            *for_builders[i].steps, _ = for_builders[i].steps
            failed = builders[i].fail()
            if for_builders[i].steps:
                for_builders[i].end((False, True, True), last[0], last[-1])
                built[i].append(failed)
            else:
                for_builders[i].episode, for_builders[i].first_step = for_builders[i].episode + 1, 0
                assert failed is None
    for i in range(L):
        assert [as_listed(each) for each in got[i]] == for_pages[i].taken
        assert [as_listed(each) for each in built[i]] == for_builders[i].taken


def test_memory_follows_open_steps_and_is_used_again():
    pages = StepPages(LAYOUT, 10_000)
    lane = pages.open_lane(uuid.uuid4(), "a")
    for _ in range(20):
        for _ in range(20 * PAGE_ROWS):
            pages.append_one(lane, STEP, None)
        assert len(pages.end(lane, 0.0, True, False, None)) == 20 * PAGE_ROWS
    assert pages.num_pages == 32


def test_lanes_are_used_again_and_old_ones_are_not_open():
    pages = StepPages(LAYOUT, 10)
    first = pages.open_lane(uuid.uuid4(), "a")
    pages.close_lane(first)
    second = pages.open_lane(uuid.uuid4(), "b")
    assert second.number == first.number
    assert (pages.is_open(first), pages.is_open(second)) == (False, True)
    with pytest.raises(ConfigError, match="was removed"):
        pages.end(first, 0.0, True, False, None)


def test_a_shorter_limit_cuts_at_the_next_step():
    pages = StepPages(LAYOUT, 100)
    lane = pages.open_lane(uuid.uuid4(), "a")
    for _ in range(50):
        assert pages.append_one(lane, STEP, None) == []
    pages.set_max_length(20)
    (cut,) = pages.append_one(lane, STEP, None)
    assert len(cut[1]) == 50
    assert sum(len(pages.append_one(lane, STEP, None)) for _ in range(40)) == 2


@pytest.mark.parametrize("num_before", [0, 5, PAGE_ROWS, 100])
def test_what_is_no_row_leaves_a_lane_as_it_was(num_before):
    pages = StepPages(LAYOUT, 100)
    lane = pages.open_lane(uuid.uuid4(), "a")
    for _ in range(num_before):
        pages.append_one(lane, STEP, None)
    with pytest.raises(ValueError, match="broadcast"):
        pages.append_one(lane, (np.zeros(2), *STEP[1:]), None)
    assert pages.num_open_steps(lane) == num_before
    cut = pages.append_one(lane, STEP, None)
    assert [len(fragment) for _, fragment in cut] == [100] * (num_before == 100)
    assert len(pages.end(lane, 0.0, True, False, None)) == num_before % 100 + 1
    assert len(pages._free_pages) == pages.num_pages - 1
