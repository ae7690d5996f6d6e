"""A training server and its clients in one process: the handshake, numbers, refusals, and a whole run."""

from uuid import uuid4

import numpy as np
import pytest
from remote_parts import cartpole_server, frames, hello, send, stored_ids

import relayrl
from relayrl.bench.servers.trajectory_producer import trajectory_name
from relayrl.errors import ServerRefusedError, ServerUnreachableError
from relayrl.runtime.remote.remote_actor import RemoteActorSettings, run_remote_actor
from relayrl.runtime.remote.server_link import LinkSettings, ServerLink
from relayrl.runtime.remote.spool import Spool
from relayrl.servers.training.training_server import _lag_bound
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message
from waiting import DEADLINE_S, wait_until


def test_the_welcome_says_what_the_run_is(client):
    welcome = hello(client)
    assert welcome.kind is Kind.WELCOME
    assert (welcome.header["env"], welcome.header["algorithm"]) == ("CartPole-v1", "ppo")
    assert list(welcome.header["behaviors"]) == ["agent"]
    assert welcome.header["next_sequence"] == 0
    assert welcome.header["model_versions"] == {"agent": 0}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"protocol": 0}, "protocol", "protocol 0, this server protocol 1"),
        ({"role": "king"}, "role", "'king'"),
        ({"schema_version": 99}, "schema", "99"),
        ({"client_id": "me"}, "client_id", "UUID"),
        ({"oldest_sequence": -1}, "malformed", "oldest_sequence"),
        ({"behaviors": {"other": {}}}, "spaces", "'other'"),
        ({"behaviors": {"agent": {"observation_space": "{}"}}}, "spaces", "observation_space"),
        ({"behaviors": 3}, "malformed", "behaviors"),
    ],
)
def test_a_client_that_does_not_fit_is_refused_with_the_reason(client, changes, code, words):
    refused = hello(client, **changes)
    assert (refused.kind, refused.header["code"]) == (Kind.REFUSED, code)
    assert words in refused.header["message"]


def test_trajectories_are_acknowledged_when_they_are_stored(server, client):
    hello(client)
    for number in range(3):
        reply = send(client, number)
        assert (reply.kind, reply.header["durable_through"]) == (Kind.ACK, number)
    url = f"arrow:{server.run_dir / 'journal'}"
    assert stored_ids(url) == [trajectory_name(client.client_id, k) for k in range(3)]


def test_a_message_that_comes_twice_is_stored_once(server, client):
    hello(client)
    for number in (0, 1, 0, 1, 1, 2):
        reply = send(client, number)
    assert reply.header["durable_through"] == 2
    assert server.metrics.duplicates.value == 3
    assert server.metrics.received.value == 3


def test_a_message_that_comes_too_early_is_not_taken(server, client):
    hello(client)
    reply = send(client, 2)
    assert (reply.header["durable_through"], reply.header["expected"]) == (-1, 0)
    assert server.metrics.out_of_order.value == 1
    assert [send(client, n).header["durable_through"] for n in range(3)] == [0, 1, 2]


def test_whoever_did_not_say_hello_is_told_to(client):
    reply = send(client, 0)
    assert (reply.kind, reply.header["code"]) == (Kind.ERROR, "hello")


def test_messages_in_anothers_name_are_refused(client):
    hello(client)
    header = {"client_id": str(uuid4()), "sequence": 0}
    reply = client.call(Message(Kind.TRAJECTORY, header, frames(client, 0)), DEADLINE_S)
    assert (reply.kind, reply.header["code"]) == (Kind.ERROR, "malformed")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (lambda c: (b"no Arrow",), "Arrow"),
        (lambda c: frames(c, 0, obs=np.full((5, 4), np.nan, np.float32)), "NaN"),
        (lambda c: frames(c, 0, group="stranger"), "stranger"),
        (lambda c: frames(c, 0, logp=None), "no logp"),
        (lambda c: frames(c, 0, policy_version=np.full(5, 1 << 40)), "newer than version 0"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_for_good_and_counted(server, client, payload, words):
    hello(client)
    reply = send(client, 0, payload(client))
    assert reply.header["durable_through"] == 0
    ((number, why),) = reply.header["rejected"]
    assert number == 0
    assert words in why
    assert server.metrics.invalid.value == 1
    assert send(client, 1).header["durable_through"] == 1


def test_models_are_pulled_by_whoever_lacks_them(client):
    hello(client)
    model = client.call(Message(Kind.MODEL_GET, {"group": "agent", "have": -1}), DEADLINE_S)
    assert (model.kind, model.header["version"], len(model.payload)) == (Kind.MODEL, 0, 1)
    again = client.call(Message(Kind.MODEL_GET, {"group": "agent", "have": 0}), DEADLINE_S)
    assert again.payload == ()
    wrong = client.call(Message(Kind.MODEL_GET, {"group": "nobody", "have": 0}), DEADLINE_S)
    assert (wrong.kind, wrong.header["code"]) == (Kind.ERROR, "group")


def test_a_refusal_is_final_and_raised(server, tmp_path):
    with Spool(tmp_path / "spool") as spool:
        wrong = {"agent": {"observation_space": "{}", "action_space": "{}"}}
        with ServerLink(server.address, spool, behaviors=wrong) as link:
            with pytest.raises(ServerRefusedError, match="observation_space") as refused:
                link.connect(DEADLINE_S)
            assert refused.value.code == "spaces"


def test_nobody_there_is_an_error_at_the_deadline(tmp_path):
    expected = pytest.raises(ServerUnreachableError, match="is a training server running there")
    with Spool(tmp_path / "spool") as spool, ServerLink("tcp://127.0.0.1:9", spool) as link, expected:
        link.connect(0.2)


def test_a_run_of_remote_actors_ends_with_its_steps_learned_from(tmp_path):
    with cartpole_server(tmp_path, steps=2_048) as server:
        report = run_remote_actor("CartPole-v1", server.address, spool_base=tmp_path / "spool", seed=1)
        result = server.wait(DEADLINE_S)
        assert result.num_env_steps >= 2_048
        assert report.num_left == 0
        assert report.num_rejected == 0
        assert server.metrics.updates.value >= 3
        num_stored = len(stored_ids(f"arrow:{server.run_dir / 'journal'}"))
        assert server.metrics.received.value == num_stored >= server.metrics.learned.value > 0
        assert server.metrics.stale.value == server.metrics.invalid.value == 0
    assert (tmp_path / "run" / "model.onnx").exists()
    assert (tmp_path / "run" / "result.json").exists()


def test_a_server_that_is_resumed_goes_on_with_newer_versions_and_the_same_steps(tmp_path):
    with cartpole_server(tmp_path, steps=100_000) as server:
        actor = {"spool_base": tmp_path / "spool", "seed": 1, "settings": RemoteActorSettings(link=LinkSettings())}
        run_remote_actor("CartPole-v1", server.address, max_steps=3_000, **actor)
        wait_until(lambda: server.metrics.updates.value >= 3)
        server.stop()
        with pytest.raises(KeyboardInterrupt):
            server.wait(DEADLINE_S)
        version = server.metrics.version.value
        num_stored = len(stored_ids(f"arrow:{server.run_dir / 'journal'}"))
    with cartpole_server(tmp_path, steps=100_000, resume=True) as again:
        assert again.metrics.version.value > version
        run_remote_actor("CartPole-v1", again.address, max_steps=1_000, **actor)
        assert len(stored_ids(f"arrow:{again.run_dir / 'journal'}")) > num_stored


def test_what_was_acknowledged_and_not_learned_from_is_there_after_a_restart(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000) as server:
        client = ClientEndpoint(server.address, client_id=uuid4())
        hello(client)
        for number in range(3):
            send(client, number, frames(client, number, num_steps=20))
        assert server.metrics.queue_steps.value == 60
        client.close()
    with cartpole_server(tmp_path, steps=1_000_000, resume=True) as again:
        assert again.metrics.queue_steps.value == 60
        back = ClientEndpoint(again.address, client_id=client.client_id)
        assert hello(back, oldest_sequence=1).header["next_sequence"] == 3
        back.close()


def test_a_resumed_server_keeps_its_lag_bound_and_counts_no_version_that_was_left_out(tmp_path):
    with cartpole_server(tmp_path, steps=100_000) as server:
        run_remote_actor("CartPole-v1", server.address, spool_base=tmp_path / "spool", max_steps=3_000, seed=1)
        wait_until(lambda: server.metrics.updates.value >= 3)
    with cartpole_server(tmp_path, steps=100_000, resume=True) as again:
        run_remote_actor("CartPole-v1", again.address, spool_base=tmp_path / "spool", max_steps=2_000, seed=1)
        wait_until(lambda: again.metrics.updates.value >= 2)
        assert 0 <= again.metrics.lag.value <= 8
        assert again.metrics.stale.value == 0


def test_only_algorithms_that_correct_for_lag_learn_from_data_of_any_age():
    bounds = [
        _lag_bound(params, 8)
        for params in (
            relayrl.PPOParams(),
            relayrl.PPOParams(max_policy_lag=None),  # as a run directory holds it
            relayrl.PPOParams(max_policy_lag=2),
            relayrl.APPOParams(),
            relayrl.SACParams(),
        )
    ]
    assert bounds == [8, 8, 2, None, None]
