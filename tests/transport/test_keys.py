"""Who is let in: key files, the command, and servers that look at them."""

from __future__ import annotations

import logging
import os
import stat

import pytest
import zmq
from echo_server import assert_served

from cli_in_process import relayrl
from relayrl.errors import ConfigError, ServerUnreachableError
from relayrl.transport.keys import Access, ClientKeys, KeyPair, authorise, read_authorised, revoke
from relayrl.transport.messages import Kind, Message
from relayrl.transport.server_endpoint import ServerEndpoint
from waiting import DEADLINE_S, wait_until


@pytest.fixture
def keys(tmp_path):
    """Keys of a server and of alice, who is let in, as the command makes them."""
    for name in ("server", "alice"):
        assert relayrl("keys", "new", name, "--dir", str(tmp_path)).returncode == 0
    done = relayrl("keys", "authorise", str(tmp_path / "alice.pub"), "--file", str(tmp_path / "authorised_keys"))
    assert done.returncode == 0, done.stderr
    return tmp_path


def client_keys(keys, name):
    return ClientKeys.load(keys / f"{name}.key", keys / "server.pub")


def assert_not_served(client):
    with pytest.raises(ServerUnreachableError):
        client.call(Message(Kind.ACT, {}), timeout_s=0.5)


def test_files_are_for_their_owner(keys):
    assert stat.S_IMODE(os.stat(keys / "alice.key").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(keys / "authorised_keys").st_mode) == 0o600
    pair = KeyPair.load(keys / "alice.key")
    assert (keys / "alice.pub").read_text() == f"{pair.public} alice\n"
    assert pair.secret not in repr(pair)
    (keys / "alice.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        KeyPair.load(keys / "alice.key")


def test_keys_are_not_overwritten(keys):
    before = (keys / "alice.key").read_text()
    done = relayrl("keys", "new", "alice", "--dir", str(keys))
    assert done.returncode == 2
    assert "exists" in done.complaint
    assert (keys / "alice.key").read_text() == before


@pytest.mark.parametrize("content", ["", "public = x\nsecret = y\n", "\0\1\2"])
def test_a_file_that_holds_no_keys(tmp_path, content):
    path = tmp_path / "some.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="relayrl keys new"):
        KeyPair.load(path)


def test_a_public_key_of_another_secret_is_noticed(tmp_path):
    KeyPair(KeyPair.new().public, KeyPair.new().secret).save(tmp_path, "mixed")
    with pytest.raises(ConfigError, match="does not belong"):
        KeyPair.load(tmp_path / "mixed.key")


def test_the_file_of_authorised_keys_is_edited_line_by_line(tmp_path, caplog):
    path = tmp_path / "authorised_keys"
    one, two, three = (KeyPair.new().public for _ in range(3))
    path.write_text(f"# of the cluster\n{one} bob")  # without a line's end
    authorise(path, two, "bob")
    authorise(path, three, "carol")
    assert read_authorised(path) == [(one, "bob"), (two, "bob"), (three, "carol")]
    with pytest.raises(ConfigError, match="already"):
        authorise(path, two, "dave")
    assert revoke(path, one) == 1
    assert revoke(path, "carol") == 1
    assert path.read_text() == f"# of the cluster\n{two} bob\n"
    with pytest.raises(ConfigError, match="lets in: bob"):
        revoke(path, "carol")
    path.write_text(f"nonsense\n{two} bob\n{three} \n{three} two names\n")
    with caplog.at_level(logging.WARNING):
        assert read_authorised(path) == [(two, "bob")]
    assert [record.line for record in caplog.records] == [1, 3, 4]


def test_the_command_lists_and_revokes(keys):
    file = str(keys / "authorised_keys")
    public = KeyPair.load(keys / "alice.key").public
    assert relayrl("keys", "list", "--file", file).stdout == f"{public} alice\n"
    assert relayrl("keys", "authorise", KeyPair.new().public, "--file", file).complaint.endswith("Add --name NAME")
    assert relayrl("keys", "revoke", "alice", "--file", file).stdout.endswith("1 key revoked\n")
    assert relayrl("keys", "list", "--file", file).stdout == ""
    assert relayrl("keys", "revoke", "alice", "--file", file).returncode == 2
    assert "cannot read keys" in relayrl("keys", "list", "--file", str(keys / "none")).complaint


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 65, "#"])
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(ConfigError, match="names no key"):
        KeyPair.new().save(tmp_path, name)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://10.1.2.3:0"])
def test_nobody_listens_to_other_machines_without_keys(address):
    with pytest.raises(ConfigError, match="relayrl keys new"):
        ServerEndpoint(address)
    with pytest.raises(ConfigError, match="relayrl keys new"):
        ServerEndpoint("tcp://127.0.0.1:0", announce_bind=address)


def test_a_known_key_is_let_in_off_loopback(keys, make_server):
    server = make_server("tcp://0.0.0.0:0", access=Access.load(keys / "server.key"))
    server.address = server.address.replace("0.0.0.0", "127.0.0.1")
    assert_served(server.client(client_keys(keys, "alice")), user="alice")


def test_others_are_not(keys, make_server):
    server = make_server(access=Access.load(keys / "server.key"))
    alice = server.client(client_keys(keys, "alice"))
    stranger = KeyPair.new()
    wrong_server = ClientKeys(KeyPair.load(keys / "alice.key"), KeyPair.new().public)
    for other in (None, ClientKeys(stranger, KeyPair.load(keys / "server.key").public), wrong_server):
        assert_not_served(server.client(other))
        assert_served(alice, user="alice")
    assert server.count("refused_keys_total") >= 1


def test_a_client_with_keys_does_not_talk_to_a_server_without(keys, make_server):
    server = make_server()
    assert_not_served(server.client(client_keys(keys, "alice")))
    assert server.count("messages_total") == 0


def is_answered(client):
    try:
        return client.call(Message(Kind.PING, {}), 2.0).kind is Kind.PONG
    except ServerUnreachableError:
        return False


def test_keys_come_and_go_while_the_server_runs(keys, make_server):
    authorised = keys / "authorised_keys"
    server = make_server(access=Access.load(keys / "server.key"))
    alice = server.client(client_keys(keys, "alice"))
    assert_served(alice, user="alice")
    KeyPair.new().save(keys, "bob")
    bob = server.client(client_keys(keys, "bob"))
    assert_not_served(bob)
    authorise(authorised, KeyPair.load(keys / "bob.key").public, "bob")
    wait_until(lambda: is_answered(bob))  # a connection that was refused may take a call with it
    assert_served(bob, user="bob")

    bob.subscribe(server.announce_address, "model")
    wait_until(lambda: server.endpoint.announce("model", {}) or bob.announcements())
    revoke(authorised, "bob")
    wait_until(lambda: server.count("revoked_connections_total") == 2)  # of requests and of announcements
    assert_not_served(bob)
    while bob.announcements():  # what came before
        pass
    for _ in range(20):
        server.endpoint.announce("model", {})
        assert_served(alice, num_calls=1, user="alice")
    assert bob.announcements() == []
    assert server.endpoint.num_clients == 1


def test_a_revoked_client_that_only_listens_gets_nothing(keys, make_server):
    server = make_server(access=Access.load(keys / "server.key"))
    alice = server.client(client_keys(keys, "alice"))
    alice.send(Message(Kind.STATUS, {}))
    wait_until(lambda: server.kept)
    revoke(keys / "authorised_keys", "alice")
    wait_until(lambda: server.endpoint.num_clients == 0)
    server.endpoint.reply(server.kept[0], Message(Kind.STATUS, {"secret": 1}))
    assert alice.receive(0.5) is None
    assert server.count("undeliverable_replies_total") + server.count("revoked_connections_total") >= 1


def test_a_change_that_a_knock_at_the_door_noticed_first_cuts_off_as_well(keys, make_server):
    """Whoever connects has the file read again; those who are in are cut off all the same."""
    access = Access.load(keys / "server.key")
    server = make_server(access=access)
    alice = server.client(client_keys(keys, "alice"))
    assert_served(alice, user="alice")
    revoke(keys / "authorised_keys", "alice")
    access.refresh()
    wait_until(lambda: server.endpoint.num_clients == 0)
    assert_not_served(alice)


def test_a_subscription_that_comes_after_its_key_was_revoked_is_cut_off(keys, make_server):
    """The connection was let in before, and had sent nothing by which the server could know whose it is."""
    server = make_server(access=Access.load(keys / "server.key"))
    own, alice = client_keys(keys, "alice"), server.client(client_keys(keys, "alice"))
    assert_served(alice, user="alice")
    with zmq.Context() as context, context.socket(zmq.SUB) as late:
        late.set(zmq.CURVE_SERVERKEY, own.server_public.encode())
        late.set(zmq.CURVE_PUBLICKEY, own.own.public.encode())
        late.set(zmq.CURVE_SECRETKEY, own.own.secret.encode())
        late.set(zmq.RECONNECT_IVL, -1)
        with late.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
            late.connect(server.announce_address)
            assert monitor.poll(DEADLINE_S * 1000)
            late.disable_monitor()
        revoke(keys / "authorised_keys", "alice")
        wait_until(lambda: server.endpoint.num_clients == 0)
        num_cut = server.count("revoked_connections_total")
        late.set(zmq.SUBSCRIBE, b"model")
        wait_until(lambda: server.count("revoked_connections_total") > num_cut)
        for _ in range(20):
            server.endpoint.announce("model", {})
        assert not late.poll(200)


def test_a_lost_file_of_keys_lets_nobody_in(keys, make_server):
    server = make_server(access=Access.load(keys / "server.key"))
    alice = server.client(client_keys(keys, "alice"))
    assert_served(alice, user="alice")
    (keys / "authorised_keys").rename(keys / "elsewhere")
    wait_until(lambda: server.endpoint.num_clients == 0)
    assert_not_served(alice)
    (keys / "elsewhere").rename(keys / "authorised_keys")
    wait_until(lambda: is_answered(alice))  # a connection that was refused may take a call with it
    assert_served(alice, user="alice")
