"""Policies of every kind in the agent, and replacing them while requests are under way."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from gymnasium import spaces
from runtime_fakes import ListSink, export, fixed_policy, make_policy, obs

from relayrl.errors import ConfigError, DecodeError
from relayrl.models.exports.exported import ExportedActor
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.agents.state_manager import InferenceMode
from relayrl.runtime.requests.published_policy import ActionChoice
from waiting import DEADLINE_S, wait_until


def test_onnx_torchscript_and_live_policies_act_alike(tmp_path):
    policy = make_policy()
    sources = [export(policy, tmp_path / "model.onnx"), export(policy, tmp_path / "model.pt"), policy]
    records = []
    for source in sources:
        with AgentBuilder().actor_count(16).default_model(source).seed(3).build() as agent:
            ids = agent.get_actor_ids()
            records.append([agent.request_action(ids, obs(*range(16))) for _ in range(5)])
            alone = agent.request_action(ids[:1], obs(0))
            assert alone.value == pytest.approx(records[-1][0].value[:1], abs=1e-5)
    for others in records[1:]:
        for expected, got in zip(records[0], others, strict=True):
            assert expected.action.tolist() == got.action.tolist()
            assert expected.logp == pytest.approx(got.logp, abs=1e-5)
            assert expected.value == pytest.approx(got.value, abs=1e-5)


def test_a_live_policy_is_copied_when_it_is_published():
    policy = make_policy()
    with AgentBuilder().default_model(policy).action_choice(ActionChoice.GREEDY).build() as agent:
        ids = agent.get_actor_ids()
        before = agent.request_action(ids, obs(1)).value
        for parameter in policy.parameters():
            parameter.data.mul_(3.0)
        assert agent.request_action(ids, obs(1)).value == pytest.approx(before)
        agent.update_model(policy)
        assert agent.request_action(ids, obs(1)).value != pytest.approx(before)
        assert agent.get_model_version() == {ids[0]: 1}


def test_one_actor_and_many_get_what_the_file_says(tmp_path):
    """Rows of a small MLP are computed by the kernels, too many of them by onnxruntime."""
    for action_space in (spaces.Discrete(3), spaces.Box(-1, 2, (2,), np.float32)):
        policy = make_policy(action_space=action_space)
        actor = ExportedActor(export(policy, tmp_path / "model.onnx"))
        with AgentBuilder().actor_count(600).default_model(tmp_path / "model.onnx").build() as agent:
            ids = agent.get_actor_ids()
            for count in (1, 2, 600):
                seen = np.random.default_rng(count).normal(0, 1, (count, 2)).astype(np.float32)
                record = agent.request_action(ids[:count], seen)
                distribution, _, value = actor.run([seen])
                np.testing.assert_allclose(record.value, value, rtol=0, atol=1e-6)
                if isinstance(action_space, spaces.Discrete):
                    expected = actor.head.log_prob_numpy(distribution, record.action)
                    np.testing.assert_allclose(record.logp, expected, rtol=0, atol=1e-6)


def test_a_newer_policy_acts_from_the_next_request_on():
    with AgentBuilder().actor_count(2).default_model(fixed_policy(0, 1)).build() as agent:
        ids = agent.get_actor_ids()
        assert agent.request_action(ids, obs(0, 1)).policy_version.tolist() == [1, 1]
        assert agent.update_model(fixed_policy(2, 5)) == 5
        record = agent.request_action(ids, obs(0, 1), reward=0.0)
        assert record.policy_version.tolist() == [5, 5]
        assert record.action.tolist() == [2, 2]


def test_a_policy_that_is_not_newer_is_refused():
    with AgentBuilder().default_model(fixed_policy(0, 4)).build() as agent:
        with pytest.raises(ConfigError, match="not newer than version 4"):
            agent.update_model(fixed_policy(1, 4))
        assert agent.request_action(agent.get_actor_ids(), obs(0)).action.tolist() == [0]
        assert agent.update_model(fixed_policy(1, 4), version=9) == 9


def test_a_policy_of_other_spaces_is_refused():
    other = fixed_policy(0, 2, space=spaces.Box(-1, 1, (5,), np.float32))
    with (
        AgentBuilder().default_model(fixed_policy()).build() as agent,
        pytest.raises(ConfigError, match="cannot replace"),
    ):
        agent.update_model(other)


def test_independent_actors_may_have_policies_of_their_own():
    sink = ListSink()
    builder = AgentBuilder().actor_count(3).default_model(fixed_policy(0, 1)).sink(sink)
    with builder.inference_mode(InferenceMode.INDEPENDENT).build() as agent:
        ids = agent.get_actor_ids()
        agent.update_model(fixed_policy(2, 8), [ids[1]])
        record = agent.request_action(ids, obs(0, 1, 2))
        assert record.action.tolist() == [0, 2, 0]
        assert record.policy_version.tolist() == [1, 8, 1]
        record = agent.request_action(ids, obs(3, 4, 5), reward=[1, 2, 3])
        agent.flag_last_action(ids)
        assert agent.get_model_version() == dict(zip(ids, [1, 8, 1], strict=True))
    by_actor = {each.agent_id: each for each in sink.trajectories}
    assert by_actor[str(ids[1])].reward.tolist() == [2, 0]
    assert by_actor[str(ids[2])].obs[:, 0].tolist() == [2, 5]


def test_shared_actors_cannot_be_updated_one_by_one():
    builder = AgentBuilder().actor_count(2).default_model(fixed_policy())
    with builder.build() as agent, pytest.raises(ConfigError, match="INDEPENDENT"):
        agent.update_model(fixed_policy(1, 2), [agent.get_actor_ids()[0]])


def test_actors_of_different_spaces_live_side_by_side():
    wide = fixed_policy(1, 3, space=spaces.Box(-1, 1, (5,), np.float32))
    with AgentBuilder().default_model(fixed_policy(0, 1)).build() as agent:
        other = agent.new_actor(model=wide)
        assert agent.request_action([other], np.zeros((1, 5), np.float32)).action.tolist() == [1]
        assert agent.update_model(fixed_policy(2, 9)) == 9
        assert agent.get_model_version([other]) == {other: 3}


@pytest.mark.parametrize("name", ["model.onnx", "model.pt"])
def test_a_damaged_file_is_refused_and_the_old_policy_stays(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"not a model")
    with AgentBuilder().default_model(fixed_policy(1, 1)).build() as agent:
        with pytest.raises(DecodeError, match="is not a"):
            agent.update_model(path)
        with pytest.raises(ConfigError, match="no model at"):
            agent.update_model(tmp_path / f"missing{path.suffix}")
        with pytest.raises(ConfigError, match="neither"):
            agent.update_model(tmp_path / "model.txt")
        assert agent.request_action(agent.get_actor_ids(), obs(0)).action.tolist() == [1]


def test_reload_under_load_never_mixes_two_versions():
    """Version `v` prefers action `v % 3` and nothing else: an action that does not fit its version saw half a model."""
    sink = ListSink()
    wrong: list[tuple[int, int]] = []
    newest_of: dict[object, int] = {}
    with AgentBuilder().actor_count(8).default_model(fixed_policy(0, 0)).sink(sink).build() as agent:
        ids, stop = agent.get_actor_ids(), threading.Event()

        def play(actor_id) -> None:
            newest = 0
            while not stop.is_set():
                record = agent.request_action((actor_id,), obs(0), reward=None)
                version = int(record.policy_version[0])
                if int(record.action[0]) != version % 3 or version < newest:
                    wrong.append((version, int(record.action[0])))
                newest = newest_of[actor_id] = version

        threads = [threading.Thread(target=play, args=(each,)) for each in ids]
        for thread in threads:
            thread.start()
        for version in range(1, 40):
            agent.update_model(fixed_policy(version % 3, version))
            wait_until(lambda v=version: max(newest_of.values(), default=0) >= v or wrong)
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert wrong == []
    recorded = np.concatenate([np.stack([each.policy_version, each.action], 1) for each in sink.trajectories])
    assert (recorded[:, 0] % 3 == recorded[:, 1]).all()
    assert set(range(1, 40)) <= set(recorded[:, 0].tolist())


CLIENT = """
import sys
from relayrl.runtime.agents.agent_builder import AgentBuilder
import numpy as np
with AgentBuilder().actor_count(4).default_model(sys.argv[1]).build() as agent:
    ids = agent.get_actor_ids()
    for _ in range(100):
        agent.request_action(ids, np.zeros((4, 2), np.float32))
    agent.flag_last_action(ids)
resident = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
print("torch" in sys.modules, "pyarrow" in sys.modules, resident)
"""


def test_a_client_with_an_onnx_file_is_small_and_loads_no_torch(tmp_path):
    path = export(make_policy(), tmp_path / "model.onnx")
    run = subprocess.run([sys.executable, "-c", CLIENT, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *loaded, resident_mib = run.stdout.split()
    assert loaded == ["False", "False"]
    assert float(resident_mib) < 150


@pytest.mark.parametrize("mode", list(InferenceMode))
def test_new_actors_get_the_newest_published_policy(mode):
    with AgentBuilder().default_model(fixed_policy(0, 1)).inference_mode(mode).build() as agent:
        agent.update_model(fixed_policy(2, 6))
        late = agent.new_actor()
        assert agent.request_action([late], obs(0)).policy_version.tolist() == [6]


def test_many_threads_with_a_small_policy_record_every_step_once(tmp_path):
    """Single requests of such a policy share nothing but the pages; versions change meanwhile."""
    files = [export(make_policy(seed=k), tmp_path / f"{k}.onnx", version=k) for k in range(1, 5)]
    sink = ListSink()
    with AgentBuilder().actor_count(8).default_model(files[0]).sink(sink).build() as agent:
        ids = agent.get_actor_ids()
        values = [{} for _ in ids]

        def play(i: int) -> None:
            for t in range(300):
                record = agent.request_action((ids[i],), obs(1000 * i + t), reward=None if t == 0 else float(t))
                values[i][t] = (record.policy_version.item(), record.value.item(), record.action.item())
            agent.flag_last_action((ids[i],), reward=300.0)

        threads = [threading.Thread(target=play, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for newer in files[1:]:
            agent.update_model(newer)
        for thread in threads:
            thread.join(60)
    assert sink.num_steps == 2400
    actors = {version: ExportedActor(path) for version, path in enumerate(files, 1)}
    for trajectory in sink.trajectories:
        i = [str(each) for each in ids].index(trajectory.agent_id)
        assert trajectory.obs[:, 0].tolist() == [1000 * i + t for t in range(300)]
        assert trajectory.reward.tolist() == [float(t) for t in range(1, 301)]
        assert trajectory.policy_version.tolist() == [values[i][t][0] for t in range(300)]
        assert trajectory.action.tolist() == [values[i][t][2] for t in range(300)]
        for version, actor in actors.items():
            rows = trajectory.policy_version == version
            if rows.any():
                np.testing.assert_allclose(trajectory.value[rows], actor.run([trajectory.obs[rows]])[2], atol=1e-5)
