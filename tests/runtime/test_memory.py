"""Actors with a memory: each remembers its own episode, however requests are batched, and what it remembered is recorded."""

import asyncio
import threading

import numpy as np
import pytest
import torch
from runtime_fakes import OBS, ListSink, export

from relayrl.accelerator.live_actor import live_actor
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import MemoryKind, MemorySettings, NetworkSettings
from relayrl.models.recurrent_policy import RecurrentActorCritic
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.requests.policy_model import CustomPolicy
from relayrl.runtime.requests.published_policy import ActionChoice
from relayrl.testing.toy_environments import RecallCue

ACT = RecallCue().action_space


def recurrent(kind: MemoryKind = MemoryKind.LSTM, seed: int = 0, size: int = 5) -> RecurrentActorCritic:
    generator = torch.Generator().manual_seed(seed)
    network = NetworkSettings(hidden_sizes=(8,), memory=MemorySettings(kind=kind, size=size))
    policy = RecurrentActorCritic(OBS, ACT, network, generator)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return policy


def greedy(source, sink=None, count: int = 1):
    builder = AgentBuilder().actor_count(count).default_model(source).action_choice(ActionChoice.GREEDY)
    return (builder if sink is None else builder.sink(sink)).build()


def expected(policy, observations) -> tuple[np.ndarray, np.ndarray]:
    """Distributions and memories before each step [T, L, …] of lanes that see `observations` [T, L, 2] of one episode."""
    actor, memory = live_actor(policy), np.zeros((observations.shape[1], policy.memory_width), np.float32)
    before, parameters = [], []
    for seen in observations:
        before.append(memory)
        distribution, memory = actor.step(seen, None, memory)
        parameters.append(distribution)
    return np.stack(parameters), np.stack(before)


@pytest.fixture(params=["onnx", "pt", "live"])
def source(request, tmp_path):
    """A policy and what is given to the agent of it."""
    policy = recurrent()
    return policy, policy if request.param == "live" else export(policy, tmp_path / f"model.{request.param}")


def observations(steps: int, lanes: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(steps, lanes, 2)).astype(np.float32)


def test_actors_remember_their_episodes_and_begin_new_ones_with_nothing(source):
    policy, model = source
    sink, seen = ListSink(), observations(6, 3)
    with greedy(model, sink, count=3) as agent:
        ids = agent.get_actor_ids()
        for t in range(6):
            if t == 4:
                agent.flag_last_action(ids[1:2])
            agent.request_action(ids, seen[t])
        agent.flag_last_action(ids)
    parameters, before = expected(policy, seen)
    again, again_before = expected(policy, seen[4:, 1:2])
    for lane, actor_id in enumerate(ids):
        episodes = [t for t in sink.trajectories if t.agent_id == str(actor_id)]
        if lane != 1:
            (whole,) = episodes
            np.testing.assert_allclose(whole.memory, before[:, lane], atol=1e-5)
            np.testing.assert_array_equal(whole.action, policy.head.mode(parameters[:, lane]))
            continue
        first, second = sorted(episodes, key=lambda t: t.episode)
        np.testing.assert_allclose(first.memory, before[:4, 1], atol=1e-5)
        np.testing.assert_allclose(second.memory, again_before[:, 0], atol=1e-5)
        np.testing.assert_array_equal(second.action, policy.head.mode(again[:, 0]))
        assert (second.memory[0] == 0).all()


@pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.value)
def test_one_at_a_time_is_the_same_as_all_at_once(kind, tmp_path):
    path = export(recurrent(kind), tmp_path / "model.onnx")
    seen, memories = observations(5, 4), []
    for alone in (False, True):
        sink = ListSink()
        with greedy(path, sink, count=4) as agent:
            ids = agent.get_actor_ids()
            for t in range(5):
                for rows in [slice(i, i + 1) for i in (2, 0, 3, 1)] if alone else [slice(0, 4)]:
                    agent.request_action(ids[rows], seen[t, rows])
            agent.flag_last_action(ids)
        by_actor = {t.agent_id: t.memory for t in sink.trajectories}
        memories.append(np.stack([by_actor[str(actor_id)] for actor_id in ids]))
    np.testing.assert_allclose(memories[0], memories[1], atol=1e-6)


def test_threads_and_tasks_do_not_mix_memories(tmp_path):
    policy = recurrent()
    path, sink, seen = export(policy, tmp_path / "model.onnx"), ListSink(), observations(20, 8)
    with greedy(path, sink, count=8) as agent:
        ids = agent.get_actor_ids()

        def act(lane: int) -> None:
            for t in range(20):
                agent.request_action(ids[lane : lane + 1], seen[t, lane : lane + 1])

        threads = [threading.Thread(target=act, args=(lane,)) for lane in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        agent.flag_last_action(ids)
    _, before = expected(policy, seen)
    for lane, actor_id in enumerate(ids):
        (whole,) = [t for t in sink.trajectories if t.agent_id == str(actor_id)]
        np.testing.assert_allclose(whole.memory, before[:, lane], atol=1e-5)


def test_a_newer_version_goes_on_with_the_memory(tmp_path):
    first, second = recurrent(seed=0), recurrent(seed=1)
    sink, seen = ListSink(), observations(4, 1)
    with greedy(export(first, tmp_path / "a.onnx", version=1), sink) as agent:
        ids = agent.get_actor_ids()
        agent.request_action(ids, seen[0])
        agent.request_action(ids, seen[1])
        agent.update_model(export(second, tmp_path / "b.onnx", version=2))
        agent.request_action(ids, seen[2])
        agent.request_action(ids, seen[3])
        agent.flag_last_action(ids)
    (whole,) = sink.trajectories
    memory = torch.zeros(1, first.memory_width)
    for t, policy in enumerate((first, first, second, second)):
        np.testing.assert_allclose(whole.memory[t], memory[0].numpy(), atol=1e-5)
        with torch.no_grad():
            memory = policy.step(torch.from_numpy(seen[t]), None, memory)[2]


def test_a_policy_with_another_memory_does_not_replace_it(tmp_path):
    why = r"a memory of 28\) cannot replace .* a memory of \d+\)"
    with greedy(export(recurrent(), tmp_path / "a.onnx")) as agent, pytest.raises(ConfigError, match=why):
        agent.update_model(export(recurrent(size=7), tmp_path / "b.onnx", version=2))


def test_a_step_that_fails_is_not_remembered(tmp_path):
    policy = recurrent()
    sink, seen = ListSink(), observations(2, 1)
    with greedy(export(policy, tmp_path / "model.onnx"), sink) as agent:
        ids = agent.get_actor_ids()
        agent.request_action(ids, seen[0])
        with pytest.raises(ConfigError, match="expected"):
            agent.request_action(ids, np.zeros((1, 3), np.float32))
        agent.request_action(ids, seen[1])
        agent.flag_last_action(ids)
    (whole,) = sink.trajectories
    np.testing.assert_allclose(whole.memory, expected(policy, seen)[1][:, 0], atol=1e-5)


class Counting(Actor):
    """An actor of the user's own that counts its steps, and names the number as its action."""

    memory_width = 1
    head = likelihood_head(ACT)

    def distribution(self, obs, mask=None):
        raise NotImplementedError

    def step(self, obs, mask, memory):
        logits = np.stack([1.0 - memory[:, 0] % 2, memory[:, 0] % 2], 1).astype(np.float32) * 50
        return self.head.parameters_numpy(logits, mask), memory + 1


def test_an_actor_of_your_own_may_remember():
    sink = ListSink()
    with greedy(CustomPolicy(Counting(), OBS), sink) as agent:
        ids = agent.get_actor_ids()
        actions = [int(agent.request_action(ids, np.zeros((1, 2), np.float32)).action[0]) for _ in range(5)]
        agent.flag_last_action(ids)
    assert actions == [0, 1, 0, 1, 0]
    assert sink.trajectories[0].memory[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_asyncio_callers_remember(tmp_path):
    policy = recurrent()
    path, sink, seen = export(policy, tmp_path / "model.onnx"), ListSink(), observations(6, 3)

    async def play() -> list:
        builder = AgentBuilder().actor_count(3).default_model(path).action_choice(ActionChoice.GREEDY).sink(sink)
        async with builder.build().aio as agent:
            ids = await agent.get_actor_ids()
            for t in range(6):
                await asyncio.gather(*(agent.request_action(ids[i : i + 1], seen[t, i : i + 1]) for i in range(3)))
            await agent.flag_last_action(ids)
            return ids

    ids = asyncio.run(play())
    _, before = expected(policy, seen)
    for lane, actor_id in enumerate(ids):
        (whole,) = [t for t in sink.trajectories if t.agent_id == str(actor_id)]
        np.testing.assert_allclose(whole.memory, before[:, lane], atol=1e-5)


def test_environments_of_an_actors_own_are_played_with_memory(tmp_path):
    generator = torch.Generator().manual_seed(0)
    env = RecallCue()
    network = NetworkSettings(hidden_sizes=(8,), memory=MemorySettings(size=4))
    policy = RecurrentActorCritic(env.observation_space, env.action_space, network, generator)
    sink = ListSink()
    with greedy(export(policy, tmp_path / "model.onnx"), sink) as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, "relayrl.testing.toy_environments:RecallCue", 2)
        agent.run_env(actor_id, 13)
    whole = [t for t in sink.trajectories if t.first_step == 0]
    assert whole
    for trajectory in whole:
        _, before = expected(policy, trajectory.obs[:, None])
        np.testing.assert_allclose(trajectory.memory, before[:, 0], atol=1e-5)
