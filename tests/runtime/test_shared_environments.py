"""Actors that share an environment: one count of episodes and steps, whoever acts, dies, appears or waits."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import numpy as np
import pytest
from gymnasium import spaces
from runtime_fakes import FixedActor, ListSink, export, fixed_policy, make_policy

from relayrl.data.columns import Trajectory
from relayrl.data.stacking import stack_jointly
from relayrl.errors import ConfigError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.requests.action_service import ActionCall
from relayrl.runtime.requests.policy_model import CustomPolicy
from relayrl.testing.multi_agent_environments import DyingAgents

DYING = "relayrl.testing.multi_agent_environments:DyingAgents"
SPACES = DyingAgents()
GROUP_OF = {"sheep_0": "sheep", "sheep_1": "sheep", "wolf_0": "wolf_0"}
GROUPS = {"sheep": "sheep_0", "wolf_0": "wolf_0"}
OBS = np.zeros((1, 2), np.float32)


def policy_of(agent: str) -> CustomPolicy:
    actor = FixedActor(1, action_space=SPACES.action_spaces[agent])
    return CustomPolicy(actor, SPACES.observation_spaces[agent], group=GROUP_OF[agent], policy_version=1)


def outline(t: Trajectory) -> tuple[object, ...]:
    ended = (t.terminated, t.truncated, t.failed)
    return t.group, t.agent_id, t.episode, t.first_step, t.steps.tolist(), t.end_step, t.reward.tolist(), ended


EXPECTED = [("sheep", "sheep_0", episode, 0, [0, 1], 2, [1.0, 1.0], (True, False, False)) for episode in range(2)] + [
    ("sheep", "sheep_1", episode, 0, [0, 1, 2, 3, 4], 5, [1.0] * 5, (False, True, False)) for episode in range(2)
]
EXPECTED += [("wolf_0", "wolf_0", episode, 0, [3, 4, 5], 6, [10.0] * 3, (True, False, False)) for episode in range(2)]


def play(agent, ids: dict[str, UUID], num_episodes: int) -> None:
    """A program with a simulator of its own: one request per step, of all agents that act then."""
    game = DyingAgents()
    for _ in range(num_episodes):
        seen, rewards, has_acted = dict(game.reset().observations), dict.fromkeys(ids, 0.0), set()
        while game.agents:
            acting = list(game.agents)
            record = agent.request_action(
                [ids[name] for name in acting],
                [seen[name] for name in acting],
                reward=[rewards[name] if name in has_acted else 0.0 for name in acting],
            )
            has_acted |= set(acting)
            result = game.step(dict(zip(acting, record.action, strict=True)))
            seen, rewards = dict(result.observations), dict.fromkeys(ids, 0.0) | dict(result.rewards)
            for name in acting:
                terminated, truncated = result.terminated.get(name, False), result.truncated.get(name, False)
                if terminated or truncated:
                    final = [seen[name]]
                    flags = {"terminated": terminated, "truncated": truncated}
                    agent.flag_last_action([ids[name]], rewards[name], **flags, final_obs=final)


def test_a_program_records_what_the_runtime_records() -> None:
    driven, played, env_id = ListSink(), ListSink(), uuid4()
    with AgentBuilder().actor_count(0).sink(driven).build() as agent:
        ids = {
            name: agent.new_actor(model=policy_of(name), agent_id=name, env_id=env_id)
            for name in SPACES.possible_agents
        }
        play(agent, ids, 2)
    assert sorted(map(outline, driven.trajectories)) == sorted(EXPECTED)
    assert {t.env_id for t in driven.trajectories} == {env_id}

    with AgentBuilder().actor_count(0).sink(played).build() as agent:
        actors = {group: agent.new_actor(model=policy_of(name)) for group, name in GROUPS.items()}
        agent.set_env(actors, DYING)
        agent.run_env(actors["wolf_0"], 12)
    assert sorted(map(outline, played.trajectories)) == sorted(EXPECTED)
    assert all(t.logp is not None and t.state is not None for t in played.trajectories)
    assert [t.state[:, 0].tolist() for t in played.trajectories if t.group == "wolf_0"] == [[3, 4, 5]] * 2

    one, other = (stack_jointly(sink.trajectories) for sink in (driven, played))
    for name, rollout in one.items():
        for column in ("valid", "reward", "terminated", "truncated", "env_step", "env_episode"):
            np.testing.assert_array_equal(getattr(rollout, column), getattr(other[name], column), err_msg=column)
        np.testing.assert_array_equal(rollout.obs, other[name].obs)
        np.testing.assert_array_equal(rollout.successors.obs, other[name].successors.obs)


def test_each_group_plays_with_its_newest_policy() -> None:
    sink = ListSink()
    with AgentBuilder().actor_count(0).sink(sink).build() as agent:
        actors = {group: agent.new_actor(model=policy_of(name)) for group, name in GROUPS.items()}
        agent.set_env(actors, DYING, 2)
        agent.run_env(actors["sheep"], 6)
        newer = policy_of("wolf_0")
        newer.policy_version = 7
        agent.update_model(newer)
        agent.run_env(actors["wolf_0"], 6)
    versions = {name: {int(t.policy_version[0]) for t in sink.trajectories if t.group == name} for name in actors}
    assert versions == {"sheep": {1}, "wolf_0": {1, 7}}


def test_groups_and_actors_must_match() -> None:
    with AgentBuilder().actor_count(0).build() as agent:
        sheep, wolf = (agent.new_actor(model=policy_of(name)) for name in GROUPS.values())
        with pytest.raises(ConfigError, match=r"give set_env\(\) an actor for each, {'sheep': …, 'wolf_0': …}"):
            agent.set_env(sheep, DYING)
        with pytest.raises(ConfigError, match=r"actors for \['sheep'\], the environment has the groups"):
            agent.set_env({"sheep": sheep}, DYING)
        with pytest.raises(ConfigError, match="group 'sheep' of the environment"):
            agent.set_env({"sheep": wolf, "wolf_0": sheep}, DYING)
        agent.set_env({"sheep": sheep, "wolf_0": wolf}, DYING)
        agent.remove_actor(wolf)
        with pytest.raises(ConfigError, match="has no environment"):
            agent.run_env(sheep, 1)


def pair(sink: ListSink) -> AgentBuilder:
    return AgentBuilder().default_model(fixed_policy()).actor_count(0).sink(sink)


def test_turns_are_exact_with_steps() -> None:
    sink, env_id = ListSink(), uuid4()
    with pair(sink).build() as agent:
        a, b = agent.new_actors(2, agent_ids=["a", "b"], env_id=env_id)
        for step in range(5):
            agent.request_action([(a, b)[step % 2]], OBS, step=step)
        agent.flag_last_action([a], 1.0, step=4)
        agent.flag_last_action([b], -1.0, step=4)
        agent.request_action([b], OBS, step=0)
        agent.flag_last_action([b])
    found = {(t.agent_id, t.episode): (t.steps.tolist(), t.end_step) for t in sink.trajectories}
    assert found == {("a", 0): ([0, 2, 4], 5), ("b", 0): ([1, 3], 5), ("b", 1): ([0], 1)}


def test_actors_of_several_requests_at_once_act_at_the_same_step() -> None:
    sink, env_id = ListSink(), uuid4()
    with pair(sink).build() as agent:
        a, b = agent.new_actors(2, agent_ids=["a", "b"], env_id=env_id)
        agent.request_action([a], OBS)
        agent.request_action([a], OBS)
        agent.request_actions([ActionCall([b], OBS), ActionCall([a], OBS)])  # b comes late, and first
        agent.flag_last_action((a, b))
    assert {t.agent_id: t.steps.tolist() for t in sink.trajectories} == {"a": [0, 1, 2], "b": [2]}
    assert {t.end_step for t in sink.trajectories} == {3}


def test_an_actor_that_ended_stays_out_until_the_episode_is_over() -> None:
    sink, env_id = ListSink(), uuid4()
    with pair(sink).build() as agent:
        a, b = agent.new_actors(2, agent_ids=["a", "b"], env_id=env_id)
        agent.request_action((a, b), np.repeat(OBS, 2, 0))
        agent.flag_last_action([a])
        with pytest.raises(ConfigError, match=r"'a' has ended in episode 0 .* goes on with \['b'\]"):
            agent.request_action([a], OBS)
        agent.request_action([b], OBS)
        with pytest.raises(ConfigError, match="step 1 of environment"):
            agent.request_action([b], OBS, step=1)
        agent.flag_last_action([b])
        agent.request_action((a, b), np.repeat(OBS, 2, 0))
    found = [(t.agent_id, t.episode, t.steps.tolist(), t.end_step, t.failed) for t in sink.trajectories]
    assert sorted(found) == [
        ("a", 0, [0], 1, False),
        ("a", 1, [0], 2, True),
        ("b", 0, [0, 1], 2, False),
        ("b", 1, [0], 2, True),
    ]


def test_fragments_tile_the_environments_steps(tmp_path) -> None:
    sink, env_id = ListSink(), uuid4()
    (tmp_path / "client.json").write_text('{"max_traj_length": 2}')
    with pair(sink).config_path(tmp_path / "client.json").build() as agent:
        a, b = agent.new_actors(2, agent_ids=["a", "b"], env_id=env_id)
        for step in range(7):
            agent.request_action([a], OBS, step=step)
            if step % 2:
                agent.request_action([b], OBS, step=step)
        agent.flag_last_action((a, b))
    found = sorted((t.agent_id, t.first_step, t.end_step, t.steps.tolist()) for t in sink.trajectories)
    assert found == [
        ("a", 0, 2, [0, 1]),
        ("a", 2, 4, [2, 3]),
        ("a", 4, 6, [4, 5]),
        ("a", 6, 7, [6]),
        ("b", 0, 5, [1, 3]),
        ("b", 5, 7, [5]),
    ]
    assert len({t.trajectory_id for t in sink.trajectories}) == len(found)


def test_names_are_kept_and_are_unique_in_an_environment() -> None:
    sink, env_id = ListSink(), uuid4()
    with pair(sink).build() as agent:
        a = agent.new_actor(agent_id="a", env_id=env_id)
        with pytest.raises(ConfigError, match="has an agent 'a' already"):
            agent.new_actor(agent_id="a", env_id=env_id)
        with pytest.raises(ConfigError, match="give 2 different ones"):
            agent.new_actors(2, agent_ids=["b", "b"], env_id=env_id)
        renamed = uuid4()
        agent.set_actor_id(a, renamed)
        alone = agent.new_actor(agent_id="a")
        with pytest.raises(ConfigError, match="step= is for actors that share an environment"):
            agent.request_action([alone], OBS, step=3)
        for actor in (renamed, alone):
            agent.request_action([actor], OBS)
            agent.flag_last_action([actor])
        agent.remove_actor(renamed)
        agent.new_actor(agent_id="a", env_id=env_id)
    assert [t.agent_id for t in sink.trajectories] == ["a", "a"]
    assert len({t.env_id for t in sink.trajectories}) == 2


def test_coroutines_share_environments_too() -> None:
    sink, env_id = ListSink(), uuid4()

    async def run() -> None:
        async with pair(sink).build().aio as agent:
            a = await agent.new_actor(agent_id="a", env_id=env_id)
            (b,) = await agent.new_actors(1, agent_ids=["b"], env_id=env_id)
            for _ in range(3):
                await agent.request_action((a, b), np.repeat(OBS, 2, 0))
            await agent.request_action([b], OBS, step=5)
            await agent.flag_last_action((a, b), step=6)

    asyncio.run(run())
    assert {t.agent_id: (t.steps.tolist(), t.end_step) for t in sink.trajectories} == {
        "a": ([0, 1, 2], 7),
        "b": ([0, 1, 2, 5], 7),
    }


def test_a_live_policy_replaces_the_file_of_its_group(tmp_path) -> None:
    space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    files = {
        group: export(make_policy(space, seed=i), tmp_path / f"{group}.onnx", group=group)
        for i, group in enumerate(("wolf", "sheep"))
    }
    with AgentBuilder().actor_count(0).build() as agent:
        wolf = agent.new_actor(model=files["wolf"])
        assert agent.update_model(make_policy(space, seed=5)) == 2
        sheep = agent.new_actor(model=files["sheep"])
        with pytest.raises(ConfigError, match=r"fits actors of \['sheep', 'wolf'\]; say with group="):
            agent.update_model(make_policy(space, seed=6))
        assert agent.update_model(make_policy(space, seed=6), group="sheep") == 2
        assert agent.get_model_version() == {wolf: 2, sheep: 2}
        with pytest.raises(ConfigError, match="says itself whose it is"):
            agent.new_actor(model=files["wolf"], group="sheep")


def test_an_agent_that_was_removed_returns_with_the_next_episode():
    sink, env_id = ListSink(), uuid4()
    with AgentBuilder().actor_count(0).sink(sink).build() as agent:

        def join(name: str) -> UUID:
            return agent.new_actor(model=policy_of(name), agent_id=name, env_id=env_id)

        one, two = join("sheep_0"), join("sheep_1")
        for _ in range(3):
            agent.request_action([one, two], OBS.T)
        agent.remove_actor(two)
        agent.request_action([one], OBS[:, :1])
        two = join("sheep_1")
        with pytest.raises(ConfigError, match=r"'sheep_1' has ended in episode 0 .* goes on with \['sheep_0'\]"):
            agent.request_action([one, two], OBS.T)
        agent.request_action([one], OBS[:, :1])
        # One that has not acted in the episode yet may be replaced in it.
        three = join("wolf_0")
        agent.remove_actor(three)
        three = join("wolf_0")
        agent.request_action([three], OBS)
        agent.flag_last_action([one, three])
        agent.request_action([one, two], OBS.T)
        agent.flag_last_action([one, two])
    found = sorted((t.episode, t.agent_id, t.steps.tolist(), t.failed) for t in sink.trajectories)
    assert found == [
        (0, "sheep_0", [0, 1, 2, 3, 4], False),
        (0, "sheep_1", [0, 1, 2], True),
        (0, "wolf_0", [4], False),
        (1, "sheep_0", [0], False),
        (1, "sheep_1", [0], False),
    ]
