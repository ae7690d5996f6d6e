"""Keys of a playing actor are revoked and come back, without a restart of either side."""

import threading

import pytest
from remote_parts import cartpole_server

import relayrl
from relayrl.transport.keys import KeyPair, authorise, revoke
from waiting import wait_until


@pytest.mark.slow
def test_a_revoked_actor_is_cut_off_and_goes_on_when_it_is_let_in_again(tmp_path):
    own, alice = KeyPair.new(), KeyPair.new()
    own_file, alice_file = own.save(tmp_path, "server"), alice.save(tmp_path, "alice")
    authorised = tmp_path / "authorised_keys"
    authorise(authorised, alice.public, "alice")
    stops = threading.Event()
    with cartpole_server(tmp_path, steps=1_000_000_000, key=own_file) as server:
        actor = threading.Thread(
            target=relayrl.run_remote_actor,
            args=("CartPole-v1", server.address),
            kwargs={
                "num_envs": 2,
                "spool_base": tmp_path / "spool",
                "key": alice_file,
                "server_key": own.public,
                "should_stop": stops.is_set,
                "drain_s": 0.0,
            },
        )
        actor.start()

        def count(name):
            return server._endpoint.metrics[f"transport/{name}_total"].read()

        wait_until(lambda: count("messages") > 5)
        revoke(authorised, "alice")
        wait_until(lambda: count("revoked_connections") and count("refused_keys"))
        num_messages = count("messages")
        wait_until(lambda: count("refused_keys") > 2)  # it tries again and again
        assert count("messages") == num_messages
        authorise(authorised, alice.public, "alice")
        wait_until(lambda: count("messages") > num_messages + 5)
        stops.set()
        actor.join()
