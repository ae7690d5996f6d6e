"""Requests for a policy that wait until there is a newer one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from remote_parts import frames, hello

from relayrl.runtime.remote.server_link import ServerLink
from relayrl.runtime.remote.spool import Spool
from relayrl.servers.training.awaited_models import AwaitedModels
from relayrl.transport.messages import Kind, Message
from waiting import DEADLINE_S, wait_until

BLOCK_STEPS = 512
"""Of an update with CartPole's settings."""


def ask(client, wait_s, have=0):
    """The number of a request that may wait."""
    return client.send(Message(Kind.MODEL_GET, {"group": "agent", "have": have, "wait_s": wait_s}))


def post(client, number, num_steps):
    header = {"client_id": str(client.client_id), "sequence": number}
    client.send(Message(Kind.TRAJECTORY, header, frames(client, number, num_steps)))


def next_model(client):
    """The next MODEL, with what came before it."""
    before = []
    while (reply := client.receive(DEADLINE_S)) is not None:
        if reply.kind is Kind.MODEL:
            return reply, before
        before.append(reply.kind)
    raise AssertionError("no MODEL has come")


def test_a_request_that_waits_gets_the_next_version(client):
    assert hello(client).header["awaits_models"] is True
    number = ask(client, wait_s=10.0)
    post(client, 0, BLOCK_STEPS)
    model, _ = next_model(client)
    assert (model.number, model.header["version"], len(model.payload)) == (number, 1, 1)
    assert model.header["model_versions"] == {"agent": 1}


def test_a_request_whose_time_is_over_is_answered_without_a_policy(client):
    hello(client)
    number = ask(client, wait_s=0.5)
    client.send(Message(Kind.STATUS, {}))
    model, before = next_model(client)
    assert before == [Kind.STATUS]
    assert (model.number, model.header["version"], model.payload) == (number, 0, ())


def test_the_latest_request_of_a_client_waits(client):
    hello(client)
    ask(client, wait_s=10.0)
    number = ask(client, wait_s=10.0)
    post(client, 0, BLOCK_STEPS)
    model, _ = next_model(client)
    assert model.number == number
    assert client.call(Message(Kind.STATUS, {}), DEADLINE_S).header["model_versions"] == {"agent": 1}


@pytest.mark.parametrize("wait_s", [0.0, -1.0, None, "long"])
def test_a_request_that_does_not_wait_is_answered_at_once(client, wait_s):
    hello(client)
    ask(client, wait_s)
    client.send(Message(Kind.STATUS, {}))
    model, before = next_model(client)
    assert (before, model.payload) == ([], ())


def test_whoever_says_good_bye_waits_no_more(server, client):
    hello(client)
    ask(client, wait_s=10.0)
    awaited = server._ingest._awaited
    wait_until(lambda: awaited._waiting)
    client.send(Message(Kind.BYE, {}))
    wait_until(lambda: not awaited._waiting)


def test_a_link_has_new_policies_without_announcements(server, client, tmp_path, monkeypatch):
    monkeypatch.setattr(server._endpoint, "announce", lambda topic, header: None)
    hello(client)
    with Spool(tmp_path / "spool") as spool, ServerLink(server.address, spool) as link:
        assert link.wait_for_model("agent", DEADLINE_S).version == 0
        post(client, 0, BLOCK_STEPS)
        assert [each.version for each in link.wait_for_newer({"agent": 0}, DEADLINE_S)] == [1]


def test_requests_are_due_with_a_newer_version_of_their_group_or_in_time():
    first, second, third = (SimpleNamespace(client=name) for name in (b"first", b"second", b"third"))
    awaited = AwaitedModels()
    awaited.put(first, "red", have=3, end_s=10.0)
    awaited.put(second, "blue", have=5, end_s=8.0)
    versions = {"red": 3, "blue": 5}
    assert awaited.take_due(versions, 1.0) == []
    assert awaited.take_due({"red": 3, "blue": 6}, 1.0) == [second]
    awaited.put(third, "blue", have=5, end_s=6.0)  # older than the version that was looked at
    assert awaited.take_due({"red": 3, "blue": 6}, 2.0) == [third]
    awaited.put(second, "blue", have=6, end_s=8.0)
    assert awaited.take_due({"red": 3, "blue": 6}, 7.9) == []
    assert awaited.take_due({"red": 3, "blue": 6}, 8.0) == [second]
    assert awaited.take_due({"red": 4, "blue": 6}, 9.0) == [first]
    assert awaited.take_due({"red": 5, "blue": 7}, 20.0) == []
