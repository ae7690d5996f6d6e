"""GAIL by numbers: what is rewarded, what the discriminator minimises, what a bottleneck does, and what is kept."""

import uuid

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.data.columns import LaneHeader, Rollout, Successors, Trajectory, trajectory_id
from relayrl.data.trees import map_tree
from relayrl.errors import ConfigError
from relayrl.sinks.contract import open_sink
from relayrl.training.signals.signal_registry import SignalGroup, make_signal

PLACE, MOVE = spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
SMALL = {"network": {"hidden_sizes": [16]}, "batch_size": 16, "learning_rate": 1e-2}


def header(group="agent", observation=PLACE, action=MOVE, lanes=2) -> LaneHeader:
    return LaneHeader(group, tuple(uuid.UUID(int=i) for i in range(lanes)), ("agent",), observation, action)


def rollout_at(place, move=0.0, steps=16, valid=None, group="agent") -> Rollout:
    shape = (steps, 2)
    last = np.full((2,), steps - 1), np.arange(2)
    flags = [np.zeros(shape, bool) for _ in range(2)]
    acted = np.ones(shape, bool) if valid is None else np.array(valid, bool)
    columns = (
        np.full((*shape, 1), place, np.float32),
        np.full((*shape, 1), move, np.float32),
        np.zeros(shape, np.float32),
    )
    counts = [np.zeros(shape, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64)]
    successors = Successors(*last, np.zeros((2, 1), np.float32))
    return Rollout(header(group), *columns, *flags, acted, np.zeros(shape, bool), *counts, successors)


def demonstrate(url, place, move=0.0, group="agent", steps=40, observation=PLACE, action=MOVE):
    env = uuid.uuid4()
    one = Trajectory(
        *(trajectory_id(env, "agent", 0, 0), env, "agent", group, observation, action, 0, 0),
        obs=np.full((steps, 1), place, np.float32),
        action=np.full((steps, 1), move, np.float32),
        reward=np.zeros(steps, np.float32),
        policy_version=np.zeros(steps, np.int64),
        terminated=True,
        truncated=False,
        failed=False,
        final_obs=np.zeros(1, np.float32),
    )
    with open_sink(url) as sink:
        sink.write([one])


@pytest.fixture
def demos(tmp_path):
    url = f"arrow:{tmp_path}/demos"
    demonstrate(url, 0.5, 0.8)
    return url


def made(url, seed=1, groups=("agent",), **options):
    plans = [SignalGroup(header(group), 0.99, seed) for group in groups]
    return make_signal("gail", SMALL | {"demo_path": url} | options, plans)


@pytest.mark.parametrize("options", [{}, {"use_vail": True, "bottleneck_size": 4}, {"gradient_penalty": 0.0}])
def test_what_is_demonstrated_is_rewarded_more(demos, options):
    signal, own, valid = made(demos, **options), rollout_at(-0.5), np.ones((16, 2))
    valid[3, 1] = 0
    for _ in range(80):
        signal.evaluate(own)
        metrics = signal.learn(own)
    assert metrics["demo_estimate"] > metrics["policy_estimate"] + 0.05
    shown, far = signal.evaluate(rollout_at(0.5, valid=valid)), signal.evaluate(own)
    assert shown[0, 0] > far[0, 0] + 0.2
    assert shown[3, 1] == 0.0


def test_actions_count_where_they_are_asked_for(demos):
    """The same places, other moves."""
    own = rollout_at(0.5, move=-0.8)
    blind, seeing = made(demos), made(demos, use_actions=True)
    for _ in range(60):
        for signal in (blind, seeing):
            signal.evaluate(own)
            signal.learn(own)
    assert abs(float(blind.evaluate(own)[0, 0]) - np.log(2)) < 0.02
    assert seeing.evaluate(rollout_at(0.5, move=0.8))[0, 0] > seeing.evaluate(own)[0, 0] + 0.2
    (group,) = seeing._groups.values()
    places, moves = np.zeros((2, 1), np.float32), np.array([[7.0], [1.0]], np.float32)
    assert group.model.encode(places, moves)[:, 1].tolist() == [1.0, 1.0]  # as the environment clips them


def test_the_gradient_penalty_is_of_the_distance_to_a_slope_of_one(demos):
    """A linear discriminator d = w x, with normalised inputs."""
    group = next(iter(made(demos, network={"hidden_sizes": []})._groups.values()))
    (weight, _) = group._parameters
    for slope, penalty in ((1.0, 0.0), (3.0, 4.0), (0.0, 1.0)):
        with torch.no_grad():
            weight.fill_(slope)
        found = group._gradient_penalty(torch.zeros(4, 1), torch.ones(4, 1))
        assert float(found.detach()) == pytest.approx(penalty, abs=1e-5)


def test_beta_follows_the_information_in_the_code(demos):
    signal = made(demos, use_vail=True, bottleneck_size=4, mutual_information=0.0, beta_learning_rate=0.5)
    own, betas = rollout_at(-0.5), []
    for _ in range(20):
        signal.evaluate(own)
        metrics = signal.learn(own)
        betas.append(metrics["beta"])
    first = betas[1] - betas[0]
    assert betas[0] >= 0.0
    assert first > 0.0
    assert metrics["information"] < 0.2  # which the growing weight presses out
    free = made(demos, use_vail=True, mutual_information=1e6)
    free.learn(own)
    assert free.learn(own)["beta"] == 0.0


@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("options", [{}, {"use_vail": True, "use_actions": True}])
def test_a_signal_goes_on_from_its_state_bit_for_bit(demos, steps, options):
    """Rollouts of one step are filled up with the rows before them, which are part of the state."""
    rollouts = [rollout_at(place, steps=steps) for place in (-0.5, 0.1, 0.3, -0.9)]
    one = made(demos, **options)
    for rollout in rollouts[:2]:
        one.evaluate(rollout), one.learn(rollout)
    state = map_tree(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, one.state_dict())
    other = made(demos, seed=7, **options)
    other.load_state_dict(state)
    for rollout in rollouts[2:]:
        np.testing.assert_array_equal(one.evaluate(rollout), other.evaluate(rollout))
        assert one.learn(rollout) == other.learn(rollout)


def test_small_rollouts_are_filled_up_to_a_minibatch(demos):
    signal = made(demos)
    for t in range(12):
        signal.learn(rollout_at(t / 100, steps=1))
    (group,) = signal._groups.values()
    np.testing.assert_allclose(
        group._recent[:, 0], np.repeat(np.arange(4, 12) / 100, 2), rtol=1e-6
    )  # 16 rows, 2 a step


def test_nobody_acts_nothing_changes(demos):
    signal, empty = made(demos), rollout_at(0.5, valid=np.zeros((16, 2)))
    before = {name: tensor.clone() for name, tensor in signal.state_dict()["agent"]["model"].items()}
    assert (signal.evaluate(empty) == 0.0).all()
    assert signal.learn(empty) == {}
    after = signal.state_dict()["agent"]["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_each_group_imitates_its_own_and_a_group_without_demonstrations_nothing(tmp_path, caplog):
    url = f"sqlite:{tmp_path}/demos.db"
    demonstrate(url, 0.5, group="a")
    signal = made(url, groups=("a", "b"))
    assert "no demonstrations of b" in caplog.text
    assert (signal.evaluate(rollout_at(0.5, group="b")) == 0.0).all()
    assert signal.learn(rollout_at(0.5, group="b")) == {}
    assert (signal.evaluate(rollout_at(0.5, group="a")) > 0.0).all()
    only = made(url, groups=("another name",))  # all that is recorded belongs to the only group
    assert list(only.state_dict()) == ["another name"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"demo_path": "arrow:/nowhere-at-all"}, "nowhere-at-all"),
        ({"demo_path": "/nowhere-at-all"}, "no file or folder /nowhere-at-all"),
        ({"demo_path": ""}, "demo_path"),
        ({"use_vial": True}, "use_vial"),
        ({"gradient_penalty": -1.0}, "gradient_penalty"),
    ],
)
def test_options_that_make_no_sense_are_refused(demos, options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        made(demos, **options)


def test_demonstrations_of_other_spaces_are_refused(tmp_path):
    url = f"arrow:{tmp_path}/demos"
    demonstrate(url, 0.5, action=spaces.Box(-2, 2, (1,), np.float32))
    with pytest.raises(ConfigError, match="acts in Box"):
        made(url)
    demonstrate(f"arrow:{tmp_path}/bad", np.nan)
    with pytest.raises(ConfigError, match="NaN or infinite"):
        made(f"arrow:{tmp_path}/bad")
