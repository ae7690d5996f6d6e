"""Inference through a bad network and through locked doors."""

import numpy as np
import pytest
from exported_policies import exported_policy

from relayrl import AgentBuilder
from relayrl.bench.servers.chaos_proxy import ChaosProxy, ChaosSettings
from relayrl.errors import InferenceError, ServerUnreachableError
from relayrl.models.exports.exported import ExportedActor
from relayrl.servers.inference.inference_server import InferenceServer
from relayrl.transport.keys import KeyPair, authorise, revoke
from waiting import wait_until

BAD = ChaosSettings(drop=0.05, duplicate=0.05, reorder=0.05, delay=0.1, max_delay_s=0.01, reset=0.01, truncate=0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return exported_policy(tmp_path_factory.mktemp("models") / "m.onnx", version=1)


def test_answers_are_right_or_missing_whatever_the_network_does(model):
    """A reply that comes late, twice or in another order is never taken for another request's."""
    reference, rng = ExportedActor(model, with_value=True), np.random.default_rng(0)
    with (
        InferenceServer("tcp://127.0.0.1:0", [model]) as server,
        ChaosProxy(server.address, seed=1) as proxy,
        AgentBuilder().actor_count(2).inference(proxy.address, timeout_s=0.4).build() as agent,
    ):
        proxy.settings = BAD
        ids, right, missing = agent.get_actor_ids(), 0, 0
        for _ in range(80):
            obs = rng.normal(size=(2, 4)).astype(np.float32)
            try:
                record = agent.request_action(ids, obs)
            except InferenceError:
                missing += 1
                continue
            np.testing.assert_allclose(record.value, reference.forward(obs, None, None).value, atol=1e-5)
            right += 1
        assert proxy.faults["drop"] + proxy.faults["reset"] > 0
        assert (right > 0, missing > 0) == (True, True)


def test_with_a_fallback_every_request_is_answered(model):
    rng = np.random.default_rng(0)
    with (
        InferenceServer("tcp://127.0.0.1:0", [model]) as server,
        ChaosProxy(server.address, seed=2) as proxy,
        AgentBuilder().actor_count(2).inference(proxy.address, "client_fallback", timeout_s=0.4).build() as agent,
    ):
        proxy.settings = BAD
        ids = agent.get_actor_ids()
        for _ in range(100):
            assert len(agent.request_action(ids, rng.normal(size=(2, 4)).astype(np.float32))) == 2
        proxy.go_down()
        for _ in range(20):
            assert len(agent.request_action(ids, np.zeros((2, 4), np.float32))) == 2


def test_only_authorised_clients_are_answered(model, tmp_path):
    server_key, alice, eve = (KeyPair.new().save(tmp_path, name) for name in ("server", "alice", "eve"))
    authorised = tmp_path / "authorised_keys"
    authorise(authorised, KeyPair.load(alice).public, "alice")
    obs = np.zeros((1, 4), np.float32)
    with InferenceServer("tcp://127.0.0.1:0", [model], key=server_key) as server:
        public = server_key.with_suffix(".pub")
        for builder in (
            AgentBuilder().inference(server.address, timeout_s=1.0),
            AgentBuilder().inference(server.address, timeout_s=1.0, key=eve, server_key=public),
            AgentBuilder().inference(server.address, timeout_s=1.0, key=alice, server_key=eve.with_suffix(".pub")),
        ):
            with pytest.raises(ServerUnreachableError):
                builder.build().start()
        keys = {"key": alice, "server_key": public}
        with AgentBuilder().inference(server.address, timeout_s=2.0, **keys).build() as agent:
            agent.request_action(agent.get_actor_ids(), obs)
            assert revoke(authorised, "alice") == 1

            def is_cut_off() -> bool:
                try:
                    return agent.request_action(agent.get_actor_ids(), obs) is None
                except InferenceError:
                    return True

            wait_until(is_cut_off)
