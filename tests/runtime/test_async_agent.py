"""The agent's asyncio form."""

import asyncio
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from runtime_fakes import ListSink, fixed_policy, obs, steps_of

from relayrl.errors import ConfigError, RelayRLError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.requests.action_record import ActionRecord
from waiting import DEADLINE_S

NUM_TURNS_OF_A_REQUEST = 5
"""Of the loop, from a task's creation to its end, where a policy takes no turn of its own."""


def test_tasks_share_forward_passes_and_every_step_is_recorded():
    policy, sink = fixed_policy(2, 3), ListSink()

    async def play(agent, actor_id, i: int) -> None:
        for t in range(10):
            record = await agent.request_action((actor_id,), obs(100 * i + t), reward=None if t == 0 else float(i))
            assert record.actor_ids == (actor_id,)
            assert record.action.tolist() == [2]
        await agent.flag_last_action((actor_id,), reward=float(i))

    async def main() -> None:
        async with AgentBuilder().actor_count(20).default_model(policy).sink(sink).build().aio as agent:
            ids = await agent.get_actor_ids()
            await asyncio.gather(*(play(agent, actor_id, i) for i, actor_id in enumerate(ids)))

    asyncio.run(main())
    assert max(policy.actor.batch_sizes) == 20
    steps = steps_of(sink.trajectories)
    assert len(steps) == len(set(steps)) == 200
    for trajectory in sink.trajectories:
        assert (trajectory.reward == trajectory.obs[0, 0] // 100).all()


def test_the_loop_goes_on_while_a_policy_works():
    policy, go_on = fixed_policy(), threading.Event()

    async def main() -> None:
        async with AgentBuilder().default_model(policy).build().aio as agent:
            policy.actor.before_pass = lambda: go_on.wait(DEADLINE_S)
            task = asyncio.create_task(agent.request_action(await agent.get_actor_ids(), obs(0)))
            await turns(100)
            assert not task.done()
            go_on.set()
            await task

    asyncio.run(main())


def test_errors_reach_the_task_that_made_them_and_no_other():
    async def main() -> None:
        async with AgentBuilder().actor_count(2).default_model(fixed_policy(1)).build().aio as agent:
            first, second = await agent.get_actor_ids()
            good, bad, worse = await asyncio.gather(
                agent.request_action((first,), obs(0)),
                agent.request_action((second,), obs(0, 1)),
                agent.request_action((second,), obs(0), reward=3.0),
                return_exceptions=True,
            )
            assert good.action.tolist() == [1]
            assert isinstance(bad, ConfigError)
            assert "one observation per actor" in str(bad)
            assert isinstance(worse, ConfigError)

    asyncio.run(main())


class InlineExecutor(ThreadPoolExecutor):
    """Works in the caller's thread, so that what happens in which turn of the loop is always the same."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except RelayRLError as error:
            future.set_exception(error)
        return future


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def numbers(trajectory) -> tuple[list[float], list[float]]:
    return trajectory.obs[:, 0].tolist(), trajectory.reward.tolist()


@pytest.mark.parametrize("num_turns", range(8))
def test_a_request_that_is_cancelled_in_any_turn_of_the_loop_has_recorded_nothing(num_turns: int):
    sink, is_delivered = ListSink(), False

    async def main() -> None:
        nonlocal is_delivered
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        async with AgentBuilder().default_model(fixed_policy(1)).sink(sink).build().aio as agent:
            ids = await agent.get_actor_ids()
            await agent.request_action(ids, obs(0))
            task = asyncio.create_task(agent.request_action(ids, obs(1), reward=10.0))
            await turns(num_turns)
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            is_delivered = isinstance(result, ActionRecord)
            assert is_delivered or isinstance(result, asyncio.CancelledError)
            await agent.request_action(ids, obs(2), reward=20.0 if is_delivered else 10.0)
            await agent.flag_last_action(ids, reward=30.0)

    asyncio.run(main())
    (trajectory,) = sink.trajectories
    expected = ([0, 1, 2], [10, 20, 30]) if is_delivered else ([0, 2], [10, 30])
    assert numbers(trajectory) == expected
    assert is_delivered == (num_turns >= NUM_TURNS_OF_A_REQUEST)


def test_a_request_that_is_cancelled_while_its_policy_works_has_recorded_nothing():
    policy, sink = fixed_policy(1), ListSink()
    entered, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        async with AgentBuilder().actor_count(2).default_model(policy).sink(sink).build().aio as agent:
            first, second = await agent.get_actor_ids()
            policy.actor.before_pass = lambda: (entered.set(), go_on.wait(DEADLINE_S))
            one = asyncio.create_task(agent.request_action((first,), obs(0)))
            other = asyncio.create_task(agent.request_action((second,), obs(1)))
            assert await asyncio.to_thread(entered.wait, DEADLINE_S)
            one.cancel()
            await asyncio.wait([one])
            assert one.cancelled()
            go_on.set()
            assert (await other).action.tolist() == [1]
            assert policy.actor.batch_sizes[-1] == 2
            await agent.request_action((first,), obs(2))
            await agent.flag_last_action((first, second), reward=[5.0, 6.0])

    asyncio.run(main())
    assert sorted(map(numbers, sink.trajectories)) == [([1], [6]), ([2], [5])]


def test_an_episodes_end_that_is_cancelled_while_it_waits_for_room_has_not_happened(tmp_path):
    sink, config = ListSink(), tmp_path / "client.json"
    config.write_text('{"router_buffer": {"max_bytes": 1, "push_back_timeout_s": 60.0}}')

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # one thing after the other
        builder = AgentBuilder().config_path(config).actor_count(2).default_model(fixed_policy(1)).sink(sink)
        built = builder.build()
        async with built.aio as agent:
            first, second = await agent.get_actor_ids()
            await agent.request_action((first, second), obs(0, 1))
            sink.gate.clear()
            await agent.flag_last_action((first,), reward=1.0)  # takes the room that there is
            task = asyncio.create_task(agent.flag_last_action((second,), reward=2.0))
            while built.metrics["runtime/push_backs_total"].read() == 0:
                await turns(1)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            sink.gate.set()
            await agent.flag_last_action((second,), reward=3.0)

    asyncio.run(main())
    assert sorted(map(numbers, sink.trajectories)) == [([0], [1]), ([1], [3])]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_recorded_is_what_was_delivered_however_many_tasks_are_cancelled(seed: int):
    sink, rng = ListSink(), random.Random(seed)
    delivered: list[tuple[list[float], list[float]]] = []
    num_cancelled = 0

    async def play(agent, actor_id, i: int) -> None:
        nonlocal num_cancelled
        seen, rewards = [], []
        for t in range(60):
            reward = float(t) if seen else None
            task = asyncio.create_task(agent.request_action((actor_id,), obs(100 * i + t), reward=reward))
            if rng.random() < 0.6:
                await turns(rng.randrange(6))
                task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(result, asyncio.CancelledError):
                num_cancelled += 1
                continue
            assert isinstance(result, ActionRecord)
            rewards += [] if reward is None else [reward]
            seen.append(100.0 * i + t)
        await agent.flag_last_action((actor_id,), reward=-1.0)
        delivered.append((seen, [*rewards, -1.0]))

    async def main() -> None:
        async with AgentBuilder().actor_count(8).default_model(fixed_policy(1)).sink(sink).build().aio as agent:
            await asyncio.gather(*(play(agent, key, i) for i, key in enumerate(await agent.get_actor_ids())))

    asyncio.run(main())
    assert num_cancelled > 50
    assert sorted(map(numbers, sink.trajectories)) == sorted(delivered)


def test_every_verb_has_its_coroutine():
    sink = ListSink()

    async def main() -> None:
        agent = AgentBuilder().actor_count(1).default_model(fixed_policy(0, 1)).sink(sink).build().aio
        await agent.start()
        (first,) = await agent.get_actor_ids()
        made = await agent.new_actors(2)
        await agent.request_action(made, obs(0, 1))
        assert await agent.update_model(fixed_policy(1, 2)) == 2
        assert (await agent.get_model_version())[first] == 2
        assert await agent.scale_throughput(1) == 2
        assert (await agent.get_config()).router_scale == 2
        other = await agent.new_actor()
        await agent.set_actor_id(other, other)
        assert await agent.remove_actor(made[0])
        await agent.flag_last_action(made[1:])
        assert await agent.flush()
        assert sink.num_steps == 2
        assert (await agent.restart()).is_clean
        assert (await agent.shutdown()).is_clean

    asyncio.run(main())
