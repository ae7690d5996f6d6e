"""Scaling, adding, removing, renaming, stopping and starting, under load: nothing is lost."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid

import pytest
from runtime_fakes import ListSink, fixed_policy, obs, steps_of

from relayrl.errors import AgentStateError, BufferFullError, ConfigError
from relayrl.runtime.agents.agent_builder import AgentBuilder
from relayrl.runtime.agents.lifecycle_manager import AgentState
from relayrl.sinks.contract import open_source
from waiting import DEADLINE_S, wait_until


def builder(sink, actors: int = 4) -> AgentBuilder:
    return AgentBuilder().actor_count(actors).default_model(fixed_policy(1, 1)).sink(sink)


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Load:
    """Threads that play episodes of ten steps with every actor of theirs until they are stopped; counts its steps."""

    def __init__(self, agent, ids, num_threads: int = 4) -> None:
        self._agent, self._stop = agent, threading.Event()
        self.num_steps, self.errors = [0] * num_threads, []
        shares = [tuple(ids[i::num_threads]) for i in range(num_threads)]
        self._threads = [threading.Thread(target=self._play, args=(i, share)) for i, share in enumerate(shares)]

    def _play(self, i: int, ids) -> None:
        t = 0
        while not self._stop.is_set() or t % 10:
            self._agent.request_action(ids, obs(*([t] * len(ids))), reward=None if t % 10 == 0 else 1.0)
            self.num_steps[i] += len(ids)
            t += 1
            if t % 10 == 0:
                self._agent.flag_last_action(ids, reward=1.0)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()

    def more(self) -> None:
        """Wait for 100 steps more."""
        enough = sum(self.num_steps) + 100
        wait_until(lambda: sum(self.num_steps) >= enough)


def test_scaling_needs_a_change_and_leaves_at_least_one_router():
    with builder(ListSink()).build() as agent:
        with pytest.raises(ConfigError, match="scale_throughput\\(0\\)"):
            agent.scale_throughput(0)
        with pytest.raises(ConfigError, match="at least one must remain"):
            agent.scale_throughput(-1)
        assert agent.scale_throughput(3) == 4
        assert agent.scale_throughput(-2) == 2
        assert agent.get_config().router_scale == 2


def test_actors_are_spread_evenly_after_every_change():
    with builder(ListSink(), actors=10).build() as agent:
        dispatcher = agent._coordinator._dispatcher
        assert dispatcher.load() == [10]
        agent.scale_throughput(3)
        assert sorted(dispatcher.load()) == [2, 2, 3, 3]
        agent.scale_throughput(-1)
        assert sorted(dispatcher.load()) == [3, 3, 4]
        agent.new_actors(2)
        assert sorted(dispatcher.load()) == [4, 4, 4]
        agent.remove_actor(agent.get_actor_ids()[0])
        assert sorted(dispatcher.load()) == [3, 4, 4]


def test_scaling_under_load_loses_no_step():
    sink = ListSink(delay_s=0.001)
    with builder(sink, actors=12).build() as agent:
        with Load(agent, agent.get_actor_ids()) as load:
            for change in (3, -2, 4, -5, 2, -2):
                agent.scale_throughput(change)
                load.more()
        agent.flush()
        steps = steps_of(sink.trajectories)
    assert len(steps) == len(set(steps)) == sum(load.num_steps) >= 600


def test_what_a_retired_router_had_not_written_goes_to_the_others():
    sink = ListSink()
    with builder(sink, actors=4).router_scale(3).build() as agent:
        ids = agent.get_actor_ids()
        sink.gate.clear()
        for _ in range(20):
            agent.request_action(ids, obs(0, 0, 0, 0))
            agent.flag_last_action(ids)
        retire = threading.Thread(target=agent.scale_throughput, args=(-2,))
        retire.start()
        wait_until(lambda: agent._coordinator._dispatcher.num_routers < 3)
        sink.gate.set()
        retire.join(DEADLINE_S)
        assert agent.flush()
        assert sink.num_steps == 80


def test_removing_an_actor_makes_its_steps_durable():
    sink = ListSink()
    with builder(sink).build() as agent:
        first, second, *_ = agent.get_actor_ids()
        agent.request_action([first], obs(0))
        agent.request_action([first], obs(1), reward=1.0)
        assert agent.remove_actor(first)
        assert sink.num_steps == 2
        assert first not in agent.get_actor_ids()
        with pytest.raises(ConfigError, match="no actor"):
            agent.request_action([first], obs(0))
        agent.request_action([second], obs(0))


def test_an_actor_may_be_removed_and_its_id_used_again_without_mixing_steps():
    sink = ListSink()
    with builder(sink, actors=1).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        for _ in range(3):
            agent.request_action([actor_id], obs(0))
            agent.flag_last_action([actor_id])
            agent.remove_actor(actor_id)
            agent.new_actor(actor_id)
    assert len(sink.trajectories) == 3
    assert len({each.env_id for each in sink.trajectories}) == 3
    assert {each.agent_id for each in sink.trajectories} == {str(actor_id)}


def test_renaming_moves_the_open_trajectory_and_the_old_name_is_free():
    sink, new = ListSink(), uuid.uuid4()
    with builder(sink, actors=2).build() as agent:
        old, other = agent.get_actor_ids()
        agent.request_action([old], obs(0))
        agent.set_actor_id(old, new)
        assert agent.get_actor_ids() == (new, other)
        agent.request_action([new], obs(1), reward=5.0)
        with pytest.raises(ConfigError, match="no actor"):
            agent.request_action([old], obs(1))
        with pytest.raises(ConfigError, match="already"):
            agent.set_actor_id(new, other)
        agent.new_actor(old)
        agent.request_action([old], obs(7))
        agent.flag_last_action([new])
        agent.flag_last_action([old])
    by_actor = {each.agent_id: each for each in sink.trajectories}
    assert by_actor[str(new)].obs[:, 0].tolist() == [0, 1]
    assert by_actor[str(new)].reward.tolist() == [5, 0]
    assert by_actor[str(old)].obs[:, 0].tolist() == [7]


def test_churn_of_actors_under_load_loses_no_step():
    sink = ListSink()
    with builder(sink, actors=8).router_scale(2).build() as agent:
        with Load(agent, agent.get_actor_ids()) as load:
            for _ in range(30):
                made = agent.new_actors(3)
                agent.request_action(made, obs(0, 0, 0))
                agent.set_actor_id(made[0], uuid.uuid4())
                for actor_id in agent.get_actor_ids()[-3:]:
                    agent.remove_actor(actor_id)
        agent.flush()
    steps = steps_of(sink.trajectories)
    assert len(steps) == len(set(steps)) == sum(load.num_steps) + 90


def test_a_full_buffer_pushes_back_and_loses_nothing(tmp_path):
    config = tmp_path / "config.json"
    config.write_text('{"router_buffer": {"max_trajectories_per_actor": 2, "push_back_timeout_s": 0.2}}')
    sink = ListSink()
    with builder(sink, actors=1).config_path(config).build() as agent:
        ids = agent.get_actor_ids()
        sink.gate.clear()
        for _ in range(2):
            agent.request_action(ids, obs(0))
            agent.flag_last_action(ids)
        with pytest.raises(BufferFullError, match=r"no room within 0\.2 s"):
            agent.request_action(ids, obs(0))
        sink.gate.set()
        while True:
            try:
                agent.request_action(ids, obs(1))
                break
            except BufferFullError:
                continue
        assert agent.metrics["runtime/push_backs_total"].value >= 1
    assert sink.num_steps == 3


def test_a_sink_that_fails_is_tried_again_and_nothing_is_lost():
    sink = ListSink(failures=3)
    with builder(sink, actors=2).build() as agent:
        ids = agent.get_actor_ids()
        agent.request_action(ids, obs(0, 1))
        agent.flag_last_action(ids)
        assert agent.flush()
        assert agent.metrics["runtime/sink_failures_total"].value == 3
    assert sink.num_steps == 2


def test_a_trajectory_that_the_sink_refuses_is_reported_and_does_not_block_the_others():
    class Picky(ListSink):
        def write(self, trajectories) -> None:
            if any(each.reward.sum() == 13 for each in trajectories):
                raise ConfigError("thirteen")
            super().write(trajectories)

    sink = Picky()
    agent = builder(sink, actors=3).build()
    agent.start()
    ids = agent.get_actor_ids()
    agent.request_action(ids, obs(0, 1, 2))
    agent.flag_last_action(ids, reward=[1, 13, 2])
    report = agent.shutdown()
    assert sink.num_steps == 2
    assert [(each.agent_id, why) for each, why in report.rejected] == [(str(ids[1]), "thirteen")]
    assert not report.is_clean


def test_shutdown_ends_by_its_deadline_and_gives_back_what_it_could_not_write():
    sink = ListSink(failures=10**9)
    agent = builder(sink, actors=2).build()
    agent.start()
    ids = agent.get_actor_ids()
    agent.request_action(ids, obs(0, 1))
    agent.flag_last_action(ids[:1])
    report = agent.shutdown(deadline_s=0.5)  # the sink alone would be tried for ever
    assert sorted(each.agent_id for each in report.undelivered) == sorted(map(str, ids))
    assert not report.is_clean


def test_requests_under_way_finish_before_shutdown_and_later_ones_are_refused():
    sink, outcomes, reports = ListSink(), [], []
    policy, entered, go_on = fixed_policy(1, 1), threading.Event(), threading.Event()
    agent = AgentBuilder().actor_count(1).default_model(policy).sink(sink).build()
    agent.start()
    ids = agent.get_actor_ids()
    policy.actor.before_pass = lambda: (entered.set(), go_on.wait(DEADLINE_S))
    thread = threading.Thread(target=lambda: outcomes.append(agent.request_action(ids, obs(0))))
    thread.start()
    assert entered.wait(DEADLINE_S)
    stop = threading.Thread(target=lambda: reports.append(agent.shutdown(deadline_s=DEADLINE_S)))
    stop.start()
    wait_until(lambda: agent.state is AgentState.STOPPING)
    go_on.set()
    stop.join(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert [report.is_clean for report in reports] == [True]
    assert len(outcomes) == 1
    assert sink.num_steps == 1
    with pytest.raises(AgentStateError):
        agent.request_action(ids, obs(0))


def test_restarting_leaks_no_threads_files_or_memory(tmp_path):
    config = tmp_path / "config.json"
    config.write_text("{}")
    urls = [f"arrow:{tmp_path / 'arrow'}", "memory:restarts"]
    agent = AgentBuilder().actor_count(4).default_model(fixed_policy(1, 1)).sink(*urls).config_path(config).build()
    agent.start()
    ids = agent.get_actor_ids()
    counts = []
    for i in range(6):
        agent.request_action(ids, obs(0, 1, 2, 3))
        agent.flag_last_action(ids)
        agent.scale_throughput(2)
        assert agent.restart().is_clean
        agent.scale_throughput(-2)
        gc.collect()
        if i:
            counts.append((threading.active_count(), num_open_files()))
    assert agent.get_actor_ids() == ids
    agent.shutdown()
    assert len(set(counts)) == 1, counts
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("relayrl")]
    with open_source(urls[0]) as source:
        assert source.count().num_steps == 24


def resident_mb() -> float:
    gc.collect()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def test_restarting_often_keeps_memory_flat():
    agent = builder(ListSink(), actors=50).router_scale(3).build()
    agent.start()
    ids, zeros = agent.get_actor_ids(), obs(*([0] * 50))
    sizes = []
    for i in range(60):
        agent.request_action(ids, zeros)
        agent.restart()
        if i in (20, 59):
            sizes.append(resident_mb())
    agent.shutdown()
    assert sizes[1] < sizes[0] + 5


def test_a_start_that_fails_leaves_nothing_running():
    agent = AgentBuilder().default_model(fixed_policy()).sink("nonsense:there").build()
    with pytest.raises(ConfigError, match="kind of sink"):
        agent.start()
    assert agent.state is AgentState.CREATED
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("relayrl")]


def test_builders_refuse_what_cannot_work():
    with pytest.raises(ConfigError, match="default_model"):
        AgentBuilder().actor_count(2).build()
    with pytest.raises(ConfigError, match="negative"):
        AgentBuilder().actor_count(-1)
    with pytest.raises(ConfigError, match="router_scale"):
        AgentBuilder().default_model(fixed_policy()).router_scale(0).build()
    with pytest.raises(ConfigError, match="either URLs or one sink"):
        AgentBuilder().sink("arrow:x", ListSink())
    assert AgentBuilder().actor_count(0).build().state is AgentState.CREATED


TERMINATED = """
    import sys, threading
    sys.path.insert(0, sys.argv[2])
    from runtime_fakes import fixed_policy, obs
    from relayrl.errors import AgentStateError
    from relayrl.runtime.agents.agent_builder import AgentBuilder
    from relayrl.runtime.agents.termination import shutdown_on_signal

    agent = AgentBuilder().actor_count(2).default_model(fixed_policy(1, 1)).sink("arrow:" + sys.argv[1]).build()
    agent.start()
    ids, steps = agent.get_actor_ids(), 0
    with shutdown_on_signal(agent, deadline_s=60):
        try:
            while True:
                agent.request_action(ids, obs(0, 1))
                steps += 2
                if steps == 200:
                    print("ready", flush=True)
        except AgentStateError:
            print(steps, flush=True)
            threading.Event().wait(120)
"""


def test_sigterm_flushes_everything_and_then_ends_the_process(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(TERMINATED), str(tmp_path / "out"), os.path.dirname(__file__)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGTERM
    with open_source(f"arrow:{tmp_path / 'out'}") as source:
        assert source.count().num_steps == int(output) >= 200
