"""The agent's asyncio form."""

import asyncio

import pytest
from runtime_fakes import ListSink, fixed_policy, obs, steps_of

from relayrl.errors import ConfigError
from relayrl.runtime.agent_builder import AgentBuilder


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
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def main() -> None:
        async with AgentBuilder().default_model(fixed_policy(delay_s=0.3)).build().aio as agent:
            background = asyncio.create_task(tick())
            await agent.request_action(await agent.get_actor_ids(), obs(0))
            background.cancel()

    asyncio.run(main())
    assert ticks >= 10


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


def test_a_cancelled_task_does_not_disturb_the_others():
    async def main() -> None:
        async with AgentBuilder().actor_count(2).default_model(fixed_policy(1, delay_s=0.05)).build().aio as agent:
            first, second = await agent.get_actor_ids()
            one = asyncio.create_task(agent.request_action((first,), obs(0)))
            other = asyncio.create_task(agent.request_action((second,), obs(0)))
            await asyncio.sleep(0.01)
            one.cancel()
            assert (await other).action.tolist() == [1]
            with pytest.raises(asyncio.CancelledError):
                await one

    asyncio.run(main())


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
