"""What `request_action` and `flag_last_action` record, row by row."""

import uuid

import numpy as np
import pytest
from gymnasium import spaces
from runtime_fakes import ListSink, export, fixed_policy, make_policy, obs, steps_of

from relayrl.errors import ActionMaskError, AgentStateError, ConfigError, InferenceError
from relayrl.models.exports.exported import ExportedActor
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.agents.lifecycle_manager import AgentState
from relayrl.runtime.requests.published_policy import ActionChoice


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def agent(sink):
    with AgentBuilder().actor_count(3).default_model(fixed_policy(1, 7)).sink(sink).seed(0).build() as running:
        yield running


def only(trajectories):
    (one,) = trajectories
    return one


def test_a_reward_belongs_to_the_action_before_it(agent, sink):
    ids = agent.get_actor_ids()[:1]
    agent.request_action(ids, obs(0))
    agent.request_action(ids, obs(1), reward=10.0)
    agent.request_action(ids, obs(2), reward=20.0)
    agent.flag_last_action(ids, reward=30.0)
    agent.flush()
    trajectory = only(sink.trajectories)
    assert trajectory.reward.tolist() == [10.0, 20.0, 30.0]
    assert trajectory.obs[:, 0].tolist() == [0, 1, 2]
    assert trajectory.action.tolist() == [1, 1, 1]
    assert trajectory.policy_version.tolist() == [7, 7, 7]
    assert (trajectory.terminated, trajectory.truncated, trajectory.is_whole) == (True, False, True)


def test_rewards_of_a_batch_go_to_the_actor_of_their_row(agent, sink):
    ids = agent.get_actor_ids()
    agent.request_action(ids, obs(0, 10, 20))
    agent.request_action(ids, obs(1, 11, 21), reward=np.array([1.0, 2.0, 3.0]))
    agent.flag_last_action(ids, reward=[4.0, 5.0, 6.0])
    agent.flush()
    rewards = {each.agent_id: each.reward.tolist() for each in sink.trajectories}
    assert rewards == {str(ids[0]): [1, 4], str(ids[1]): [2, 5], str(ids[2]): [3, 6]}
    first = {each.agent_id: each.obs[:, 0].tolist() for each in sink.trajectories}
    assert first[str(ids[1])] == [10, 11]


def test_the_record_says_what_was_done(agent):
    ids = agent.get_actor_ids()
    record = agent.request_action(ids, obs(0, 1, 2))
    assert record.actor_ids == ids
    assert record.action.tolist() == [1, 1, 1]
    assert record.policy_version.tolist() == [7, 7, 7]
    assert record.logp == pytest.approx([0, 0, 0], abs=1e-6)
    assert record.value is None
    assert len(record) == 3


def test_truncation_keeps_the_final_observation_and_is_not_termination(agent, sink):
    ids = agent.get_actor_ids()[:2]
    agent.request_action(ids, obs(0, 10))
    agent.flag_last_action(ids, reward=[1, 2], truncated=[True, False], final_obs=obs(5, 15))
    agent.flush()
    by_actor = {each.agent_id: each for each in sink.trajectories}
    cut_off, over = by_actor[str(ids[0])], by_actor[str(ids[1])]
    assert (cut_off.terminated, cut_off.truncated, cut_off.final_obs.tolist()) == (False, True, [5, -5])
    assert (over.terminated, over.truncated, over.final_obs.tolist()) == (True, False, [15, -15])


def test_an_episode_may_terminate_and_be_truncated_in_one_step(agent, sink):
    ids = agent.get_actor_ids()[:1]
    agent.request_action(ids, obs(0))
    agent.flag_last_action(ids, terminated=True, truncated=True, final_obs=obs(1))
    agent.flush()
    assert (only(sink.trajectories).terminated, only(sink.trajectories).truncated) == (True, True)


def test_truncation_without_a_final_observation_is_an_error(agent):
    ids = agent.get_actor_ids()[:1]
    agent.request_action(ids, obs(0))
    with pytest.raises(ConfigError, match="final_obs"):
        agent.flag_last_action(ids, truncated=True)


def test_episodes_are_numbered_and_begin_at_step_zero(agent, sink):
    ids = agent.get_actor_ids()[:1]
    for _ in range(3):
        agent.request_action(ids, obs(0))
        agent.flag_last_action(ids)
    agent.flush()
    assert [(each.episode, each.first_step, len(each)) for each in sink.trajectories] == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 1),
    ]


def test_a_long_episode_is_cut_into_fragments_that_go_on(sink, tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"max_traj_length": 4}')
    builder = AgentBuilder().default_model(fixed_policy()).config_path(config).sink(sink)
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        for t in range(10):
            agent.request_action(ids, obs(t), reward=None if t == 0 else float(t))
        agent.flag_last_action(ids, reward=10.0)
    fragments = sorted(sink.trajectories, key=lambda each: each.first_step)
    assert [(each.first_step, len(each)) for each in fragments] == [(0, 4), (4, 4), (8, 2)]
    assert [each.reward.tolist() for each in fragments] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert [each.final_obs[0] for each in fragments[:2]] == [4, 8]
    assert [each.terminated for each in fragments] == [False, False, True]
    assert not any(each.truncated or each.failed for each in fragments)


def test_a_mask_is_obeyed_and_recorded(agent, sink):
    ids = agent.get_actor_ids()[:2]
    mask = [[True, False, True], [True, True, True]]
    record = agent.request_action(ids, obs(0, 1), mask=mask)
    assert record.action[0] != 1
    assert record.action[1] == 1
    agent.flag_last_action(ids)
    agent.flush()
    by_actor = {each.agent_id: each for each in sink.trajectories}
    assert by_actor[str(ids[0])].action_mask.tolist() == [mask[0]]


def test_a_mask_of_a_file_without_masks_is_obeyed_all_the_same(tmp_path):
    path = export(make_policy(), tmp_path / "model.onnx")
    with AgentBuilder().default_model(path).build() as agent:
        ids = agent.get_actor_ids()
        for _ in range(20):
            assert agent.request_action(ids, obs(0), mask=[[False, True, False]]).action[0] == 1


def test_a_file_that_was_trained_with_masks_wants_one(tmp_path):
    path = export(make_policy(), tmp_path / "model.onnx", masked=True)
    with AgentBuilder().default_model(path).build() as agent:
        with pytest.raises(ConfigError, match="give request_action\\(\\) a mask"):
            agent.request_action(agent.get_actor_ids(), obs(0))
        assert agent.request_action(agent.get_actor_ids(), obs(0), mask=[[False, False, True]]).action[0] == 2


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"obs": np.zeros((2, 2), np.float32)}, "one observation per actor"),
        ({"obs": np.zeros(2, np.float32)}, "one observation per actor"),
        ({"obs": np.zeros((1, 2), complex)}, "dtype"),
        ({"obs": obs(0), "mask": [[True, True]]}, "one row per actor"),
        ({"obs": obs(0), "reward": 1.0}, "has not acted"),
        ({"obs": obs(0), "mask": [[[True], [True, True]]]}, "mask is .* no array of bool"),
        ({"obs": obs(0), "reward": float("nan")}, "infinite"),
        ({"obs": obs(0), "reward": 1e300}, "infinite as float32"),
        ({"obs": obs(0), "reward": 10**400}, "reward is .* no array of float32"),
        ({"obs": obs(0), "reward": "high"}, "reward is 'high', which is no array of float32"),
    ],
)
def test_wrong_requests_say_what_is_wrong_and_record_nothing(agent, sink, arguments, match):
    ids = agent.get_actor_ids()[:1]
    with pytest.raises(ConfigError, match=match):
        agent.request_action(ids, **arguments)
    agent.shutdown()
    assert sink.trajectories == []


@pytest.mark.parametrize("num_actors", [1, 2])
def test_a_mask_that_allows_nothing_names_the_actor_and_its_step(agent, sink, num_actors):
    ids = agent.get_actor_ids()[:num_actors]
    allowed = [[True, True, True]] * num_actors
    for step in range(2):
        agent.request_action(ids, obs(*[step] * num_actors), mask=allowed)
    with pytest.raises(ActionMaskError, match=f"actor {ids[-1]} at step 2 of its episode: the action mask allows no"):
        agent.request_action(ids, obs(*[2] * num_actors), mask=[*allowed[1:], [False] * 3])
    agent.flag_last_action(ids)
    agent.flush()
    assert [len(each) for each in sink.trajectories] == [2] * num_actors


def test_every_choice_of_a_mask_must_allow_something():
    several = spaces.MultiDiscrete([2, 3])
    with AgentBuilder().default_model(fixed_policy(action_space=several)).build() as agent:
        ids = agent.get_actor_ids()
        agent.request_action(ids, obs(0), mask=[[True, False, False, False, True]])
        with pytest.raises(ActionMaskError, match="at step 1"):
            agent.request_action(ids, obs(0), mask=[[True, True, False, False, False]])


def test_the_mask_of_the_last_observation_is_recorded(agent, sink):
    ids = agent.get_actor_ids()
    agent.request_action(ids, obs(0, 1, 2), mask=np.ones((3, 3), bool))
    last = np.array([[True, False, True], [False, False, True], [False, False, False]])
    agent.flag_last_action(ids[:2], truncated=True, final_obs=obs(3, 4), final_mask=last[:2])
    agent.flag_last_action(ids[2:], final_mask=last[2:])  # an end may leave nothing to do
    agent.request_action(ids[:1], obs(5), mask=last[:1])
    agent.flag_last_action(ids[:1])
    agent.flush()
    masks = {(each.agent_id, each.episode): each.final_mask.tolist() for each in sink.trajectories}
    assert masks == {(str(ids[i]), 0): last[i].tolist() for i in range(3)} | {(str(ids[0]), 1): [True] * 3}


def test_an_exported_policy_refuses_a_row_that_allows_nothing(tmp_path):
    actor = ExportedActor(export(make_policy(), tmp_path / "model.onnx", masked=True))
    mask = np.ones((3, 3), bool)
    mask[2] = False
    for act in (actor.distribution, actor.act_greedily):
        with pytest.raises(ActionMaskError, match="row 2"):
            act(obs(0, 1, 2), mask)


def test_an_actor_occurs_once_in_a_request(agent):
    first = agent.get_actor_ids()[0]
    with pytest.raises(ConfigError, match="twice"):
        agent.request_action([first, first], obs(0, 1))


def test_an_unknown_actor_is_an_error(agent):
    with pytest.raises(ConfigError, match="no actor"):
        agent.request_action([uuid.uuid4()], obs(0))


def test_flagging_an_actor_that_has_not_acted_changes_nothing_for_the_others(agent, sink):
    ids = agent.get_actor_ids()
    agent.request_action(ids[:2], obs(0, 1))
    with pytest.raises(ConfigError, match="has not acted"):
        agent.flag_last_action(ids)
    agent.flag_last_action(ids[:2])
    agent.flush()
    assert len(sink.trajectories) == 2


def test_a_policy_that_fails_raises_and_records_nothing(sink):
    builder = AgentBuilder().default_model(fixed_policy(failure=RuntimeError("no memory"))).sink(sink)
    with builder.build() as agent, pytest.raises(InferenceError, match="no memory"):
        agent.request_action(agent.get_actor_ids(), obs(0))
    assert sink.trajectories == []


@pytest.mark.parametrize("rows", [1, 3])
def test_nan_is_never_an_action(sink, rows):
    policy = fixed_policy()
    with AgentBuilder().actor_count(rows).default_model(policy).sink(sink).build() as agent:
        policy.actor.gives_nan = True
        with pytest.raises(InferenceError, match="NaN"):
            agent.request_action(agent.get_actor_ids(), obs(*range(rows)))
    assert sink.trajectories == []


def test_an_interrupted_episode_keeps_all_its_steps_and_says_that_it_was(agent, sink):
    ids = agent.get_actor_ids()[:1]
    agent.request_action(ids, obs(0))
    agent.request_action(ids, obs(1), reward=1.0)
    report = agent.shutdown()
    trajectory = only(sink.trajectories)
    assert report.is_clean
    assert (len(trajectory), trajectory.truncated, trajectory.failed, trajectory.terminated) == (2, True, True, False)
    assert trajectory.final_obs.tolist() == [1, -1]


def test_the_same_seed_draws_the_same_actions(tmp_path):
    path = export(make_policy(), tmp_path / "model.onnx")

    def play():
        with AgentBuilder().actor_count(4).default_model(path).seed(5).build() as agent:
            ids = agent.get_actor_ids()
            return [agent.request_action(ids, obs(*range(4))).action.tolist() for _ in range(20)]

    assert play() == play()


def test_greedy_agents_take_the_most_likely_action():
    builder = AgentBuilder().default_model(fixed_policy(2)).action_choice(ActionChoice.GREEDY)
    with builder.build() as agent:
        assert agent.request_action(agent.get_actor_ids(), obs(0)).action.tolist() == [2]


def test_box_actions_are_clipped_for_the_caller_and_recorded_as_drawn(sink, tmp_path):
    space = spaces.Box(-0.01, 0.01, (2,), np.float32)
    path = export(make_policy(action_space=space), tmp_path / "model.onnx")
    # The deviation is the half range, so that a third of all draws lies outside.
    with AgentBuilder().actor_count(64).default_model(path).sink(sink).seed(0).build() as agent:
        ids = agent.get_actor_ids()
        record = agent.request_action(ids, obs(*range(64)))
        agent.flag_last_action(ids)
    assert np.abs(record.action).max() <= np.float32(0.01)
    recorded = np.concatenate([each.action for each in sink.trajectories])
    assert np.abs(recorded).max() > 0.011


def test_nested_observations_are_recorded_leaf_by_leaf(sink, tmp_path):
    space = spaces.Dict({"b": spaces.Box(-1, 1, (2,), np.float32), "a": spaces.Discrete(4)})
    path = export(make_policy(space), tmp_path / "model.onnx")
    with AgentBuilder().actor_count(2).default_model(path).sink(sink).build() as agent:
        ids = agent.get_actor_ids()
        seen = {"a": np.array([1, 2]), "b": np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)}
        agent.request_action(ids, seen)
        agent.request_action(ids[:1], {"b": seen["b"][:1], "a": seen["a"][:1]}, reward=1.0)
        agent.flag_last_action(ids)
        with pytest.raises(ConfigError, match="obs has no 'b'"):
            agent.request_action(ids, {"a": seen["a"]})
    lengths = sorted(len(each) for each in sink.trajectories)
    assert lengths == [1, 2]
    longest = max(sink.trajectories, key=len)
    assert longest.obs["a"].tolist() == [1, 1]
    assert longest.obs["b"][0] == pytest.approx([0.1, 0.2])


def test_verbs_need_a_running_agent():
    agent = AgentBuilder().default_model(fixed_policy()).build()
    assert agent.state is AgentState.CREATED
    with pytest.raises(AgentStateError, match="start"):
        agent.request_action([uuid.uuid4()], obs(0))
    agent.start()
    with pytest.raises(AgentStateError, match="restart"):
        agent.start()
    agent.shutdown()
    with pytest.raises(AgentStateError):
        agent.request_action(agent.get_actor_ids(), obs(0))
    assert agent.shutdown().is_clean


def test_every_step_is_recorded_once(agent, sink):
    ids = agent.get_actor_ids()
    for t in range(200):
        agent.request_action(ids, obs(t, t, t), reward=None if t % 50 == 0 else 1.0)
        if t % 50 == 49:
            agent.flag_last_action(ids)
    agent.flush()
    steps = steps_of(sink.trajectories)
    assert len(steps) == len(set(steps)) == 600


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
    ],
    ids=lambda space: type(space).__name__,
)
@pytest.mark.parametrize("rows", [1, 3])
def test_every_kind_of_action_is_given_and_recorded_with_its_log_probability(sink, tmp_path, action_space, rows):
    policy = make_policy(action_space=action_space)
    path = export(policy, tmp_path / "model.onnx")
    with AgentBuilder().actor_count(rows).default_model(path).sink(sink).build() as agent:
        ids, seen = agent.get_actor_ids(), obs(*(0.1 * i for i in range(rows)))
        records = [agent.request_action(ids, seen) for _ in range(3)]
        agent.flag_last_action(ids)
    for record in records:
        assert all(action_space.contains(action) for action in record.action)
    parameters = ExportedActor(path).distribution(seen)
    for i, actor_id in enumerate(ids):
        (trajectory,) = [each for each in sink.trajectories if each.agent_id == str(actor_id)]
        expected = policy.head.log_prob_numpy(np.repeat(parameters[i : i + 1], 3, 0), trajectory.action)
        assert trajectory.logp == pytest.approx(expected, abs=1e-4)
        assert trajectory.logp == pytest.approx([record.logp[i] for record in records], abs=1e-6)
        assert trajectory.value == pytest.approx([record.value[i] for record in records], abs=1e-6)


def test_images_are_recorded_bit_for_bit(sink):
    space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (5, 3, *space.shape), np.uint8)
    with AgentBuilder().actor_count(3).default_model(fixed_policy(space=space)).sink(sink).build() as agent:
        ids = agent.get_actor_ids()
        for seen in images[:3]:
            agent.request_action(ids, seen)
        agent.request_action(ids[1:2], images[3, 1:2])
        agent.flag_last_action(ids, truncated=True, final_obs=images[4])
    by_actor = {each.agent_id: each for each in sink.trajectories}
    assert np.array_equal(by_actor[str(ids[0])].obs, images[:3, 0])
    assert np.array_equal(by_actor[str(ids[1])].obs, images[:4, 1])
    assert np.array_equal(by_actor[str(ids[2])].final_obs, images[4, 2])
