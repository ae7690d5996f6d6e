"""What other systems with remote actors fail in: waits without an end, queues without a bound, silent drops."""

import threading
from dataclasses import replace
from uuid import uuid4

import gymnasium
import numpy as np
import pytest
from remote_parts import cartpole_server, stored_ids

from relayrl.bench.servers.trajectory_producer import numbered_trajectory
from relayrl.data.arrow.codec import decode_block
from relayrl.errors import BufferFullError, ServerUnreachableError, SpoolFullError
from relayrl.runtime.remote.remote_actor import RemoteActorSettings, run_remote_actor
from relayrl.runtime.remote.server_link import LinkSettings, ServerLink
from relayrl.runtime.remote.spool import Spool, SpoolSettings
from relayrl.runtime.remote.spool_sink import SpoolSink, frames_of
from relayrl.runtime.routing.sink_opener import Both
from relayrl.sinks.buffered import checked_blocks
from waiting import DEADLINE_S, wait_until

QUICK = LinkSettings(reply_timeout_s=0.3, max_retry_s=0.2)


def spooled(spool, *trajectories):
    for trajectory in trajectories:
        spool.append(frames_of(checked_blocks([trajectory])))
    spool.sync()


def actor_of(tmp_path, server, **options):
    options.setdefault("settings", RemoteActorSettings(link=QUICK))
    return run_remote_actor("CartPole-v1", server.address, spool_base=tmp_path / "spool", seed=3, **options)


def test_an_actor_that_comes_back_sends_what_it_had_and_goes_on(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000) as server:
        with Spool(tmp_path / "spool" / "actor-0") as left_behind:  # by an actor that was killed
            spooled(left_behind, *(numbered_trajectory(left_behind.client_id, k, 4) for k in range(3)))
        actor_of(tmp_path, server, max_steps=600)
        ids = stored_ids(f"arrow:{server.run_dir / 'journal'}")
        assert len(ids) > 3
        assert {numbered_trajectory(left_behind.client_id, k, 4).trajectory_id for k in range(3)} <= set(ids)


def test_what_an_actor_recorded_is_synced_soon_where_no_server_answers(tmp_path):
    """Against loss of power; while a server acknowledges in time, nothing is."""
    with Spool(tmp_path / "spool", SpoolSettings(sync_after_s=0.05)) as spool:
        spool.append(frames_of(checked_blocks([numbered_trajectory(spool.client_id, 0, 4)])))
        assert (spool.end_of_synced, spool.next_number) == (0, 1)
        with ServerLink("tcp://127.0.0.1:9", spool, settings=QUICK):
            wait_until(lambda: spool.end_of_synced == 1)
        assert spool.num_waiting == 1


def test_every_call_has_a_deadline_when_the_server_is_silent(tmp_path):
    from relayrl.transport.server_endpoint import ServerEndpoint

    silent = ServerEndpoint("tcp://127.0.0.1:0")  # nobody polls it: connections are made, nothing is answered
    with Spool(tmp_path / "spool") as spool, ServerLink(silent.address, spool, settings=QUICK) as link:
        with pytest.raises(ServerUnreachableError):
            link.connect(0.5)
        with pytest.raises(ServerUnreachableError):
            link.wait_for_model("agent", 0.1)
        assert link.wait_for_turn(0.1)
        assert not spool.wait_until_empty(0.0) or spool.num_waiting == 0
    silent.close()


@pytest.mark.parametrize("lost", ["the message", "its acknowledgement"])
def test_what_is_lost_on_its_way_is_sent_again_though_the_server_answers_other_questions(tmp_path, lost):
    """A client that hears of its server now and then does not take it for dead: it has to miss the acknowledgement itself."""
    from relayrl.transport.messages import Kind, Message
    from relayrl.transport.server_endpoint import ServerEndpoint

    endpoint, is_over, came = ServerEndpoint("tcp://127.0.0.1:0"), threading.Event(), []
    welcome = {
        "server_id": str(uuid4()), "algorithm": "ppo", "env": "CartPole-v1", "behaviors": {}, "environment": {},
        "limits": {"message_bytes": 1 << 20}, "next_sequence": 0, "needs_logp": True, "needs_states": False,
        "model_versions": {}, "wait": False, "turn": 0, "steps_wanted": 1, "finished": False,
    }  # fmt: skip

    def answer(request):
        kind, durable = request.message.kind, {"durable_through": -1 if lost == "the message" or not came else 0}
        if kind is Kind.HELLO:
            endpoint.reply(request, Message(Kind.WELCOME, welcome))
        elif kind is Kind.STATUS:
            endpoint.reply(request, Message(Kind.STATUS, durable))
        elif kind is Kind.TRAJECTORY:
            came.append(request.message.header["sequence"])
            if len(came) > 1:
                endpoint.reply(request, Message(Kind.ACK, {"durable_through": 0, "expected": 1}))
            else:
                endpoint.release(request)

    def serve():
        while not is_over.is_set():
            for request in endpoint.poll(0.01):
                answer(request)

    thread = threading.Thread(target=serve)
    thread.start()
    often = LinkSettings(reply_timeout_s=0.5, status_interval_s=0.05)
    try:
        with Spool(tmp_path / "spool") as spool, ServerLink(endpoint.address, spool, settings=often) as link:
            link.connect(DEADLINE_S)
            spooled(spool, numbered_trajectory(spool.client_id, 0, 4))
            link.wake()
            assert spool.wait_until_empty(DEADLINE_S)
            assert link.num_connections == 1
    finally:
        is_over.set()
        thread.join(DEADLINE_S)
        endpoint.close()
    assert came == ([0, 0] if lost == "the message" else [0])


def test_the_model_queue_of_an_actor_holds_one(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000, settings={"trainer.time_horizon": 1}) as server:
        spool = Spool(tmp_path / "spool")
        with spool, ServerLink(server.address, spool) as link:
            link.connect(DEADLINE_S)
            for k in range(40):
                spooled(spool, numbered_trajectory(spool.client_id, k, 20, version=int(server.metrics.version.value)))
                link.wake()
                assert spool.wait_until_empty(DEADLINE_S)
            wait_until(lambda: server.metrics.updates.value >= 5)
            wait_until(lambda: link.newest("agent").version == server.metrics.version.value)
            assert list(link._models) == ["agent"]


def test_a_resumed_server_takes_data_at_once(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000) as server:
        actor_of(tmp_path, server, max_steps=2_000)
    with cartpole_server(tmp_path, steps=1_000_000, resume=True) as again:
        before = again.metrics.received.value
        actor_of(tmp_path, again, max_steps=600)
        assert again.metrics.received.value > before


def test_a_server_that_has_all_its_steps_waits_for_the_actors_of_before(tmp_path):
    with cartpole_server(tmp_path, steps=2_000) as server:
        actor_of(tmp_path, server, max_steps=600)  # as if the server had been killed: this one knows of no end
    with cartpole_server(tmp_path, steps=2_000, resume=True, server={"drain_s": DEADLINE_S}) as again:
        other = RemoteActorSettings(link=QUICK)
        run_remote_actor("CartPole-v1", again.address, spool_base=tmp_path / "other", settings=other)
        assert again.wait(0.2) is None
        late = actor_of(tmp_path, again)
        assert late.num_left == 0
        assert again.wait(DEADLINE_S).num_env_steps >= 2_000


def test_an_actor_gives_up_a_server_that_stays_away(tmp_path):
    server = cartpole_server(tmp_path, steps=1_000_000)
    with pytest.raises(ServerUnreachableError, match=r"has not answered for 0.5 s; [0-9]+ messages wait in"):
        actor_of(tmp_path, server, give_up_s=0.5, drain_s=0.0, on_progress=lambda _: server.close())


def test_an_actor_gives_up_a_server_that_stays_away_while_its_spool_is_full(tmp_path):
    server = cartpole_server(tmp_path, steps=1_000_000)
    small = RemoteActorSettings(link=QUICK, spool=SpoolSettings(max_bytes=100_000))
    with pytest.raises(ServerUnreachableError, match="has not answered for 2 s"):
        actor_of(tmp_path, server, settings=small, give_up_s=2.0, drain_s=0.0, on_progress=lambda _: server.close())


def test_a_lag_bound_of_zero_with_slow_weights_does_not_deadlock(tmp_path, monkeypatch):
    slow = threading.Event()
    take = ServerLink._take_model

    def late(self, reply):
        slow.wait(0.1)
        take(self, reply)

    monkeypatch.setattr(ServerLink, "_take_model", late)
    with cartpole_server(tmp_path, steps=3_000, settings={"params.max_policy_lag": 0}) as server:
        actor_of(tmp_path, server)
        assert server.wait(DEADLINE_S).num_env_steps >= 2_560


def test_data_that_is_too_old_is_dropped_counted_and_does_not_hold_up_the_rest(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000, settings={"params.max_policy_lag": 0}) as server:
        with Spool(tmp_path / "spool") as spool, ServerLink(server.address, spool) as link:
            link.connect(DEADLINE_S)
            for k in range(3 * 26):
                spooled(spool, numbered_trajectory(spool.client_id, k, 20, version=0))
            link.wake()
            assert spool.wait_until_empty(DEADLINE_S)
            wait_until(lambda: server.metrics.stale.value > 0)
            wait_until(lambda: server.metrics.learned.value + server.metrics.stale.value >= 3 * 26)
        assert server.metrics.updates.value == 1
        assert server.metrics.learned.value + server.metrics.stale.value == server.metrics.received.value == 78


class SlowEnv(gymnasium.Wrapper):
    """Takes its time for every step."""

    def step(self, action):
        threading.Event().wait(0.002)
        return super().step(action)


def slow_cart_pole():
    return SlowEnv(gymnasium.make("CartPole-v1"))


def test_a_slow_environment_never_yields_an_empty_batch(tmp_path, monkeypatch):
    from relayrl.servers.training.remote_experience import LearningFromActors

    sizes = []
    learn = LearningFromActors._learn
    monkeypatch.setattr(
        LearningFromActors, "_learn", lambda self, block: sizes.append(len(block)) or learn(self, block)
    )
    options = {"trainer.time_horizon": 4, "trainer.max_steps": 128}
    with cartpole_server(tmp_path, steps=128, settings=options) as server:
        run_remote_actor(slow_cart_pole, server.address, spool_base=tmp_path / "spool", seed=1)
        assert server.wait(DEADLINE_S).num_env_steps >= 128
    assert sizes
    assert min(sizes) > 0


def test_one_actor_with_an_endless_episode_does_not_hold_up_the_rest(tmp_path):
    with cartpole_server(tmp_path, steps=2_000) as server, Spool(tmp_path / "stuck") as stuck:
        silent = ServerLink(server.address, stuck)
        with silent:  # it is connected, has begun an episode, and never ends it
            silent.connect(DEADLINE_S)
            begun = replace(numbered_trajectory(stuck.client_id, 0, 5), terminated=False)
            spooled(stuck, begun)
            silent.wake()
            report = actor_of(tmp_path, server)
            assert server.wait(DEADLINE_S).num_env_steps >= 1_536
            assert report.num_env_steps >= 1_536


def test_back_pressure_reaches_the_environment_loop(tmp_path, monkeypatch):
    reports, steps_when_waiting = [], []
    wait = Spool.wait_for_room

    def noted(self, num_bytes, timeout_s):
        steps_when_waiting.append(reports[-1].num_env_steps)
        return wait(self, num_bytes, 0.02)

    monkeypatch.setattr(Spool, "wait_for_room", noted)
    settings = RemoteActorSettings(spool=SpoolSettings(max_bytes=60_000), link=QUICK)
    stop = threading.Event()
    with cartpole_server(tmp_path, steps=1_000_000) as server:
        options = {"settings": settings, "should_stop": stop.is_set, "on_progress": reports.append, "drain_s": 0.0}
        actor = threading.Thread(target=actor_of, args=(tmp_path, server), kwargs=options)
        actor.start()
        wait_until(lambda: len(reports) > 3)
    # The server is gone: the actor plays until its spool is full, and not one step further.
    steps_when_waiting.clear()
    wait_until(lambda: len(steps_when_waiting) >= 10)
    assert len(set(steps_when_waiting[-8:])) == 1
    stop.set()
    actor.join(DEADLINE_S)
    assert not actor.is_alive()
    with Spool(tmp_path / "spool" / "actor-0") as spool:
        assert 0 < spool.num_bytes < 2 * 60_000  # with a segment that was partly acknowledged, and the last block


def test_a_full_spool_makes_requests_wait_and_then_raise(tmp_path):
    import relayrl

    config = tmp_path / "client.json"
    config.write_text(
        '{"router_buffer": {"max_trajectories_per_actor": 2, "push_back_timeout_s": 0.3}, "max_traj_length": 2}'
    )
    with cartpole_server(tmp_path, steps=1_000_000) as server:
        builder = relayrl.AgentBuilder().server(server.address, spool=tmp_path / "spool").config_path(config)
        builder._server._spool_settings = SpoolSettings(max_bytes=5_000)
        builder._server._link_settings = QUICK
        agent = builder.actor_count(1).build()
        agent.start()
    # The server is gone. What was recorded stays, and the simulator is told that there is no room.
    ids = agent.get_actor_ids()
    with pytest.raises(BufferFullError):
        _request_many(agent, ids)
    assert agent.shutdown(deadline_s=0.5).undelivered


def _request_many(agent, ids):
    for _ in range(1_000):
        agent.request_action(ids, np.zeros((1, 4), np.float32), reward=0.0)


def test_a_dropped_trajectory_is_always_counted(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000, settings={"params.max_policy_lag": 2}) as server:
        spool = Spool(tmp_path / "spool")
        with spool, ServerLink(server.address, spool) as link:
            link.connect(DEADLINE_S)
            good = [numbered_trajectory(spool.client_id, k, 20) for k in range(200)]
            bad = replace(good[7], obs=np.full((20, 4), np.inf, np.float32), trajectory_id=uuid4())
            spooled(spool, *good[:100], bad, *good[100:])
            link.wake()
            assert spool.wait_until_empty(DEADLINE_S)
            assert link.num_rejected == 1
            metrics = server.metrics
            assert metrics.invalid.value == 1
            assert metrics.received.value == 200
            wait_until(lambda: metrics.learned.value + metrics.stale.value + metrics.queue_steps.value / 20 == 200)
            assert len(stored_ids(f"arrow:{server.run_dir / 'journal'}")) == 200


class Kept:
    """A sink that keeps what it takes, after it has refused some writes."""

    def __init__(self, num_refusals=0):
        self.taken, self._num_refusals = [], num_refusals

    def write(self, trajectories):
        if self._num_refusals:
            self._num_refusals -= 1
            raise SpoolFullError("no room")
        self.taken += [each.trajectory_id for each in trajectories]


def test_a_sink_beside_a_full_spool_gets_everything_once():
    sink, server = Kept(), Kept(num_refusals=2)
    both = Both(sink, server)
    one, two = (numbered_trajectory(uuid4(), k, 3) for k in range(2))
    for _ in range(2):
        with pytest.raises(SpoolFullError):
            both.write([one, two])
    both.write([one, two])
    both.write([numbered_trajectory(uuid4(), 2, 3)])
    assert sink.taken == server.taken
    assert len(set(sink.taken)) == len(sink.taken) == 3


def test_what_an_agent_writes_at_once_is_one_message(tmp_path):
    with Spool(tmp_path) as spool:
        SpoolSink(spool, lambda: None, "tcp://x").write([numbered_trajectory(uuid4(), k, 3) for k in range(20)])
        assert spool.next_number == 1
        (frame,) = spool.read(0)
        assert len(decode_block(frame)) == 20


def test_an_actor_that_is_stopped_before_it_is_connected_ends(tmp_path):
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) > 2

    report = run_remote_actor(
        "CartPole-v1", "tcp://127.0.0.1:9", spool_base=tmp_path, connect_timeout_s=1e6, should_stop=should_stop
    )
    assert (report.num_env_steps, report.num_left) == (0, 0)


def test_a_server_that_went_is_noticed_while_news_are_asked_for(tmp_path):
    """Each question may be of before an answer is overdue: the clock runs from the first that was not answered."""
    settings = LinkSettings(reply_timeout_s=1.0, status_interval_s=0.2)
    with (
        cartpole_server(tmp_path, steps=1_000_000) as server,
        Spool(tmp_path / "spool") as spool,
        ServerLink(server.address, spool, settings=settings) as link,
    ):
        link.connect(DEADLINE_S)
        server.close()
        wait_until(lambda: not link.is_connected)
        assert link.wait_for_turn(0.0)
