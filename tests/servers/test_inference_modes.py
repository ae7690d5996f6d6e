"""One contract for agents, wherever their policies' networks are passed: the same requests give the same records and steps.

The in-process agent with a model file is the reference; every mode is held to it.
"""

from dataclasses import fields
from uuid import UUID

import numpy as np
import pytest
from exported_policies import ACT, OBS, exported_policy
from gymnasium import spaces

from relayrl import AgentBuilder
from relayrl.errors import ActionMaskError, ConfigError, InferenceError
from relayrl.servers.inference.inference_server import InferenceServer

MODES = ["in_process", "server", "client", "client_fallback", "server_fallback"]
TREE = spaces.Dict({"b": spaces.Box(-1.0, 1.0, (2,), np.float32), "a": spaces.Discrete(3)})
POLICIES = {
    "discrete": {},
    "masked": {"masked": True},
    "multi_discrete": {"action": spaces.MultiDiscrete([2, 3])},
    "box": {"action": spaces.Box(-1.0, 1.0, (2,), np.float32)},
    "multi_binary": {"action": spaces.MultiBinary(3)},
    "tree": {"observation": TREE},
    "recurrent": {"has_memory": True},
    "recurrent_masked": {"has_memory": True, "masked": True},
    "warming_up": {"is_warming_up": True},
}
IDS = [UUID(int=i) for i in range(1, 6)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: exported_policy(folder / f"{name}.onnx", version=3, group=name, **options)
        for name, options in POLICIES.items()
    }


@pytest.fixture(scope="module")
def server(files):
    with InferenceServer("tcp://127.0.0.1:0", list(files.values())) as server:
        yield server


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


class Kept:
    """A sink that keeps trajectories."""

    def __init__(self):
        self.trajectories = []

    def write(self, trajectories):
        self.trajectories += trajectories

    def flush(self): ...

    def close(self): ...


def agent_in(mode, policy, files, server, *, sink=None, seed=7, choice="sample"):
    builder = AgentBuilder().actor_count(0).seed(seed).action_choice(choice)
    if mode == "in_process":
        builder.default_model(files[policy])
    else:
        builder.inference(server.address, mode, group=policy, timeout_s=60.0)
    if sink is not None:
        builder.sink(sink)
    return builder.build()


def rows_of(space, num_rows, rng):
    if isinstance(space, spaces.Dict):
        return {"b": rng.uniform(-1, 1, (num_rows, 2)).astype(np.float32), "a": rng.integers(0, 3, num_rows)}
    return rng.normal(size=(num_rows, *space.shape)).astype(np.float32)


def mask_of(policy, num_rows, rng):
    if "masked" not in policy:
        return None
    mask = rng.random((num_rows, 3)) < 0.5
    mask[:, 1] = True
    return mask


def play(mode, policy, files, server, choice="sample"):
    """Several actors, one and many at a time, episodes that end, for forty steps."""
    rng, kept = np.random.default_rng(3), Kept()
    space = POLICIES[policy].get("observation", OBS)
    records = []
    with agent_in(mode, policy, files, server, sink=kept, choice=choice) as agent:
        for actor_id in IDS:
            agent.new_actor(actor_id)
        asked = set()
        for step in range(40):
            ids = IDS if step % 3 else [IDS[step % 5]]
            reward = rng.normal(size=len(ids)).astype(np.float32) if set(ids) <= asked else None
            records.append(
                agent.request_action(ids, rows_of(space, len(ids), rng), mask_of(policy, len(ids), rng), reward)
            )
            asked |= set(ids)
            if step % 10 == 9:
                agent.flag_last_action(ids, reward=1.0)
                asked -= set(ids)
        assert agent.flush(60)
    return records, kept.trajectories


def same(a, b):
    if a is None or b is None:
        return a is b
    if a.dtype.kind == "f":
        return np.allclose(a, b, rtol=1e-5, atol=1e-5)
    return np.array_equal(a, b)


@pytest.fixture(scope="module")
def reference(files):
    played = {}

    def of(policy, choice):
        if (policy, choice) not in played:
            played[policy, choice] = play("in_process", policy, files, None, choice)
        return played[policy, choice]

    return of


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("choice", ["sample", "greedy"])
def test_the_same_requests_give_the_same_records(mode, policy, choice, files, server, reference):
    expected, _ = reference(policy, choice)
    records, _ = play(mode, policy, files, server, choice)
    for one, other in zip(records, expected, strict=True):
        assert one.actor_ids == other.actor_ids
        for name in ("action", "logp", "value", "policy_version"):
            assert same(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("policy", ["discrete", "recurrent_masked", "tree", "box"])
def test_the_same_steps_are_recorded(mode, policy, files, server, reference):
    _, expected = reference(policy, "sample")
    _, kept = play(mode, policy, files, server)

    def key(trajectory):
        return trajectory.agent_id, trajectory.episode, trajectory.first_step

    for one, other in zip(sorted(kept, key=key), sorted(expected, key=key), strict=True):
        assert key(one) == key(other)
        for field in fields(one):
            if field.name in ("trajectory_id", "env_id"):
                continue
            a, b = getattr(one, field.name), getattr(other, field.name)
            if isinstance(a, np.ndarray):
                assert same(a, b), field.name
            elif not isinstance(a, dict):
                assert a == b, field.name


def test_requests_of_several_policies_are_refused_alike(mode, files, server):
    """What is wrong with a request is said in the same way, and leaves no trace."""
    with agent_in(mode, "masked", files, server) as agent:
        (actor,) = agent.new_actors(1)
        good = np.zeros((1, 4), np.float32)
        with pytest.raises(ConfigError, match="trained with action masks"):
            agent.request_action([actor], good)
        with pytest.raises(ConfigError, match="mask has shape"):
            agent.request_action([actor], good, np.ones((1, 7), bool))
        with pytest.raises(ActionMaskError, match="allows no action"):
            agent.request_action([actor], good, np.zeros((1, 3), bool))
        with pytest.raises(ConfigError, match="obs has shape"):
            agent.request_action([actor], np.zeros((1, 5), np.float32), np.ones((1, 3), bool))
        with pytest.raises(ConfigError, match="there is no actor"):
            agent.request_action([UUID(int=99)], good, np.ones((1, 3), bool))
        record = agent.request_action([actor], good, np.ones((1, 3), bool))
        assert record.action.shape == (1,)


def test_nan_is_an_error_and_never_a_default_action(mode, files, server):
    with agent_in(mode, "discrete", files, server) as agent:
        ids = agent.new_actors(2)
        with pytest.raises(InferenceError):
            agent.request_action(ids, np.full((2, 4), np.nan, np.float32))
        assert len(agent.request_action(ids, np.zeros((2, 4), np.float32))) == 2


def test_masks_are_kept(mode, files, server):
    mask = np.array([[False, True, False], [True, False, False]])
    with agent_in(mode, "masked", files, server) as agent:
        ids = agent.new_actors(2)
        for _ in range(10):
            assert agent.request_action(ids, np.zeros((2, 4), np.float32), mask).action.tolist() == [1, 0]


def test_versions_are_told_and_actors_come_and_go(mode, files, server):
    with agent_in(mode, "discrete", files, server) as agent:
        first, second = agent.new_actors(2)
        assert agent.get_model_version() == {first: 3, second: 3}
        agent.request_action([first], np.zeros((1, 4), np.float32))
        agent.remove_actor(first)
        renamed = UUID(int=1234)
        agent.set_actor_id(second, renamed)
        assert agent.request_action([renamed], np.zeros((1, 4), np.float32)).policy_version.tolist() == [3]


def test_a_restarted_agent_acts_again(mode, files, server):
    with agent_in(mode, "recurrent", files, server) as agent:
        ids = agent.new_actors(2)
        agent.request_action(ids, np.zeros((2, 4), np.float32))
        assert agent.restart().is_clean
        assert agent.request_action(ids, np.zeros((2, 4), np.float32)).policy_version.tolist() == [3, 3]


def test_environments_are_played(mode, tmp_path):
    """`run_env`, on an environment that is not ours."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    model = exported_policy(tmp_path / "m.onnx", version=2, observation=env.observation_space, action=env.action_space)
    server = InferenceServer("tcp://127.0.0.1:0", [model])
    with server, agent_in(mode, "agent", {"agent": model}, server) as agent:
        (actor,) = agent.new_actors(1)
        agent.set_env(actor, "CartPole-v1", 3, seed=5)
        summary = agent.run_env(actor, 100)
    with agent_in("in_process", "agent", {"agent": model}, None) as agent:
        (actor,) = agent.new_actors(1)
        agent.set_env(actor, "CartPole-v1", 3, seed=5)
        expected = agent.run_env(actor, 100)
    assert summary.num_env_steps == 300
    assert summary == expected


def test_the_server_decides_which_policy_acts(files, server):
    with agent_in("server", "discrete", files, server) as agent:
        agent.new_actors(1)
        with pytest.raises(ConfigError, match="inference server decides"):
            agent.update_model(files["discrete"])
    with pytest.raises(ConfigError, match=r"give default_model\(\) or inference\(\)"):
        AgentBuilder().default_model(files["discrete"]).inference(server.address).build()
    with pytest.raises(ConfigError, match="serves the groups box, discrete"):
        AgentBuilder().inference(server.address, timeout_s=60.0).build().start()
    with pytest.raises(ConfigError, match="serves no group 'x'"):
        AgentBuilder().inference(server.address, group="x", timeout_s=60.0).build().start()
    assert ACT.n == 3
