"""The inference server on loopback: batches, errors, versions, canaries, restarts."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from uuid import UUID, uuid4

import numpy as np
import pytest
from exported_policies import OBS, exported_policy

from relayrl import AgentBuilder
from relayrl.errors import InferenceError, ServerUnreachableError
from relayrl.runtime.remote.act_messages import ActRequest, RemoteChoice, unpacked
from relayrl.runtime.remote.inference_actor import FallbackActor
from relayrl.servers.inference.inference_server import InferenceServer, InferenceSettings
from relayrl.servers.inference.model_store import ModelStore
from relayrl.servers.inference.request_batches import BatchSettings
from relayrl.transport.client_endpoint import ClientEndpoint
from relayrl.transport.messages import Kind, Message
from waiting import wait_until

TIMEOUT_S = 60.0
LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    for version in (1, 2, 3):
        exported_policy(path / f"{version}.onnx", version=version, seed=version)
    exported_policy(path / "memory.onnx", version=1, group="memory", has_memory=True)
    return path


@pytest.fixture
def client():
    opened = []

    def connect(server) -> ClientEndpoint:
        opened.append(ClientEndpoint(server.address, client_id=uuid4()))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def serving(models, latency_ms=5.0, **options):
    batches = BatchSettings(max_latency_ms=latency_ms, **options.pop("batches", {}))
    return InferenceServer(LOOPBACK, models, settings=InferenceSettings(batches=batches, seed=0), **options)


def act(
    rows=1, *, group="agent", version=None, choice=RemoteChoice.CLIENT, wait_s=TIMEOUT_S, obs=None, **arrays
) -> Message:
    obs = np.zeros((rows, 4), np.float32) if obs is None else obs
    return ActRequest(group, version, "someone", rows, choice, wait_s, {"obs": obs, **arrays}).as_message()


def outputs(reply: Message) -> dict:
    assert reply.kind is Kind.ACTION, reply.header
    return unpacked(reply.header["arrays"], reply.payload, reply.header["arrays"][0][2][0])


def metric(server, name) -> float:
    return next(each.value for each in server.metrics.snapshot() if each.name == name)


def greeted(server, client, num_clients) -> list[ClientEndpoint]:
    """Clients that all had their last reply in one batch: from then on everybody is waited for."""
    clients = [client(server) for _ in range(num_clients)]
    waiting = set()
    while True:
        for each in set(clients) - waiting:
            each.send(act())
        waiting = set(clients)
        for each in clients:
            if each.receive(0.05) is not None:
                waiting.discard(each)
        if not waiting:
            return clients


def test_requests_of_many_clients_are_one_pass(folder, client):
    with serving([folder / "1.onnx"], latency_ms=10_000) as server:
        clients = greeted(server, client, 8)
        before = metric(server, "inference/batches_total")
        for _ in range(5):
            for each in clients:
                each.send(act(rows=2))
            for each in clients:
                assert outputs(each.receive(TIMEOUT_S))["distribution"].shape == (2, 3)
        assert metric(server, "inference/batches_total") - before == 5


def test_a_batch_gives_everyone_what_they_would_get_alone(folder, client):
    rng = np.random.default_rng(0)
    with serving([folder / "1.onnx"], latency_ms=10_000) as server:
        rows = [rng.normal(size=(i + 1, 4)).astype(np.float32) for i in range(3)]
        one = client(server)
        alone = [outputs(one.call(act(len(r), obs=r), TIMEOUT_S)) for r in rows]
        one.send(Message(Kind.BYE, {}))
        clients = greeted(server, client, 3)
        for each, obs in zip(clients, rows, strict=True):
            each.send(act(len(obs), obs=obs))
        for each, expected in zip(clients, alone, strict=True):
            found = outputs(each.receive(TIMEOUT_S))
            for name in ("distribution", "value"):
                np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-6)


BAD = {
    "dtype": lambda: act(obs=np.zeros((1, 4), np.float64)),
    "shape": lambda: act(obs=np.zeros((1, 5), np.float32)),
    "extra": lambda: act(other=np.zeros((1, 1), np.float32)),
    "mask": lambda: act(action_mask=np.zeros((1, 3), bool)),
    "group": lambda: act(group="nobody"),
    "version": lambda: act(version=99),
    "nan": lambda: act(obs=np.full((1, 4), np.nan, np.float32)),
    "rows": lambda: Message(Kind.ACT, {**act().header, "rows": 2}, act().payload),
    "bytes": lambda: Message(Kind.ACT, act().header, (b"123",)),
    "arrays": lambda: Message(Kind.ACT, {**act().header, "arrays": [["obs", "|O", [1, 4]]]}, act().payload),
    "choice": lambda: Message(Kind.ACT, {**act().header, "choice": "best"}, act().payload),
    "empty": lambda: Message(Kind.ACT, {}),
    "wait": lambda: Message(Kind.ACT, {**act().header, "wait_ms": -1}, act().payload),
    "kind": lambda: Message(Kind.TRAJECTORY, {}),
    "get": lambda: Message(Kind.MODEL_GET, {"group": 5}),
    "report": lambda: Message(Kind.STATUS, {"returns": [["agent", 1, "x"]], "client_id": "a", "sequence": 1}),
}
CODES = {"mask": "mask", "group": "unknown_group", "version": "unknown_version", "nan": "inference"}
CODES |= {"dtype": "observation", "shape": "observation", "extra": "observation"}


@pytest.mark.parametrize("fault", BAD)
def test_an_error_goes_to_who_caused_it_and_to_nobody_else(folder, client, fault):
    with serving([folder / "1.onnx"], latency_ms=10_000) as server:
        good, bad = greeted(server, client, 2)
        good.send(act(obs=np.ones((1, 4), np.float32)))  # waits for the other
        reply = bad.call(BAD[fault](), TIMEOUT_S)
        assert reply.kind is Kind.ERROR
        assert reply.header["code"] == CODES.get(fault, "malformed")
        if fault != "nan":  # which went in the batch
            bad.send(act())
        assert np.isfinite(outputs(good.receive(TIMEOUT_S))["distribution"]).all()


def test_late_requests_are_dropped_and_counted(folder, client):
    with serving([folder / "1.onnx"], latency_ms=10_000) as server:
        first, second = greeted(server, client, 2)
        first.send(act(wait_s=0.0))  # waits for the second, for longer than it would
        wait_until(lambda: metric(server, "inference/waiting_rows") == 1)
        assert second.call(act(), TIMEOUT_S).kind is Kind.ACTION
        reply = first.receive(TIMEOUT_S)
        assert (reply.kind, reply.header["code"]) == (Kind.ERROR, "deadline")
        assert metric(server, "inference/failed_deadline_total") == 1


def test_too_much_at_once_is_refused_as_busy(folder, client):
    with serving([folder / "1.onnx"], latency_ms=10_000, batches={"max_queued_rows": 8, "max_batch": 1000}) as server:
        first, second = greeted(server, client, 2)
        first.send(act(rows=6))
        wait_until(lambda: metric(server, "inference/waiting_rows") == 6)
        assert first.call(act(rows=6), TIMEOUT_S).header["code"] == "busy"
        second.send(act(rows=2))
        assert outputs(second.receive(TIMEOUT_S))["distribution"].shape == (2, 3)


def test_the_server_chooses_where_it_is_asked_to(folder, client):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(512, 4)).astype(np.float32)
    with serving([folder / "1.onnx"]) as server:
        asking = client(server)
        parameters = outputs(asking.call(act(512, obs=rows), TIMEOUT_S))["distribution"]
        greedy = outputs(asking.call(act(512, obs=rows, choice=RemoteChoice.GREEDY), TIMEOUT_S))
        drawn = outputs(asking.call(act(512, obs=rows, choice=RemoteChoice.SAMPLE), TIMEOUT_S))
    assert (greedy["action"] == parameters.argmax(1)).all()
    np.testing.assert_allclose(drawn["logp"], parameters[np.arange(512), drawn["action"]], atol=1e-5)
    assert (drawn["action"] != greedy["action"]).any()


def test_memories_travel_with_the_client(folder, client):
    """Nothing is left on the server between two requests: another server goes on where one was stopped."""
    memory, seen = np.zeros((1, 16), np.float32), []
    for _ in range(2):
        with serving([folder / "memory.onnx"]) as server:
            for _ in range(2):
                found = outputs(client(server).call(act(group="memory", memory=memory), TIMEOUT_S))
                memory = np.array(found["memory"])
                seen.append(found["distribution"].copy())
    with serving([folder / "memory.onnx"]) as server:
        whole, expected = np.zeros((1, 16), np.float32), []
        for _ in range(4):
            found = outputs(client(server).call(act(group="memory", memory=whole), TIMEOUT_S))
            whole = np.array(found["memory"])
            expected.append(found["distribution"].copy())
    np.testing.assert_allclose(seen, expected, atol=1e-6)


def test_a_changed_file_is_served_without_a_restart(folder, tmp_path, client):
    path = tmp_path / "model.onnx"
    path.write_bytes((folder / "1.onnx").read_bytes())
    with serving([path]) as server:
        builder = AgentBuilder().inference(server.address, timeout_s=TIMEOUT_S)
        with builder.build() as agent:
            ids, obs = agent.get_actor_ids(), np.zeros((1, 4), np.float32)
            assert agent.request_action(ids, obs).policy_version.tolist() == [1]
            (tmp_path / "new").write_bytes((folder / "2.onnx").read_bytes())
            os.replace(tmp_path / "new", path)
            wait_until(lambda: agent.request_action(ids, obs).policy_version.tolist() == [2])
            path.write_bytes(b"damaged")  # is refused, and the last good one stays
            wait_until(lambda: server._keeper._complained)
            assert agent.request_action(ids, obs).policy_version.tolist() == [2]


def test_another_servers_models_are_followed(folder, tmp_path, client):
    path = tmp_path / "model.onnx"
    path.write_bytes((folder / "1.onnx").read_bytes())
    with serving([path]) as above, InferenceServer(LOOPBACK, follow=above.address) as server:
        wait_until(lambda: server.deployments.get("agent", {}).get("stable") == 1)
        (tmp_path / "new").write_bytes((folder / "3.onnx").read_bytes())
        os.replace(tmp_path / "new", path)
        wait_until(lambda: server.deployments["agent"]["stable"] == 3)
        assert client(server).call(act(version=3), TIMEOUT_S).kind is Kind.ACTION


def test_models_can_be_fetched_whole(folder, client):
    content = (folder / "1.onnx").read_bytes()
    with serving([folder / "1.onnx"]) as server:
        asking = client(server)
        reply = asking.call(Message(Kind.MODEL_GET, {"group": "agent", "have": -1}), TIMEOUT_S)
        assert (reply.header["version"], bytes(reply.payload[0])) == (1, content)
        assert asking.call(Message(Kind.MODEL_GET, {"group": "agent", "have": 1}), TIMEOUT_S).payload == ()


def test_a_store_that_is_gone_fails_one_request_and_no_other(folder, tmp_path, client):
    with serving([folder / "1.onnx"], store=tmp_path / "store") as server:
        asking = client(server)
        shutil.rmtree(tmp_path / "store")
        assert asking.call(Message(Kind.MODEL_GET, {"group": "agent"}), TIMEOUT_S).header["code"] == "failed"
        assert asking.call(act(), TIMEOUT_S).kind is Kind.ACTION
        (tmp_path / "store").mkdir()  # for the server's last look


def test_an_old_client_gets_a_clear_refusal(folder, client):
    with serving([folder / "1.onnx"]) as server:
        reply = client(server).call(Message(Kind.HELLO, {"protocol": 0}), TIMEOUT_S)
        assert reply.kind is Kind.REFUSED
        assert "protocol 0; this server speaks 1" in reply.header["message"]


def test_canaries_are_assigned_by_actor_and_seen_in_the_records(folder, tmp_path):
    store = tmp_path / "store"
    with serving([folder / "1.onnx"], store=store, canary=f"{folder / '2.onnx'}@30%") as server:
        assert server.deployments["agent"] == {"number": 2, "stable": 1, "canary": 2, "share": 0.3}
        with AgentBuilder().actor_count(0).inference(server.address, timeout_s=TIMEOUT_S).build() as agent:
            ids = [agent.new_actor(UUID(int=i)) for i in range(200)]
            versions = agent.request_action(ids, np.zeros((200, 4), np.float32)).policy_version
            assert 30 <= (versions == 2).sum() <= 90
            assert agent.get_model_version() == dict(zip(ids, versions.tolist(), strict=True))
            ModelStore(store).promote("agent", 2, by="a person")
            wait_until(lambda: set(agent.get_model_version().values()) == {2})
            assert set(agent.request_action(ids, np.zeros((200, 4), np.float32)).policy_version.tolist()) == {2}


def episodes(agent, ids, returns):
    for value in returns:
        agent.request_action(ids, np.zeros((len(ids), 4), np.float32))
        agent.request_action(ids, np.zeros((len(ids), 4), np.float32), reward=value / 2)
        agent.flag_last_action(ids, reward=value / 2)


def test_a_worse_canary_is_rolled_back_by_itself_with_a_record(folder, tmp_path):
    store, path = tmp_path / "store", tmp_path / "model.onnx"
    path.write_bytes((folder / "1.onnx").read_bytes())
    rng = np.random.default_rng(0)
    with serving([path], store=store, canary="new@30%") as server:
        (tmp_path / "new").write_bytes((folder / "2.onnx").read_bytes())
        os.replace(tmp_path / "new", path)
        wait_until(lambda: server.deployments["agent"]["canary"] == 2)
        with AgentBuilder().actor_count(0).inference(server.address, timeout_s=TIMEOUT_S).build() as agent:
            ids = [agent.new_actor(UUID(int=i)) for i in range(20)]
            quality = {1: 100.0, 2: 60.0}

            def play():
                versions = agent.get_model_version()
                episodes(agent, ids, [np.array([rng.normal(quality[versions[i]], 10.0) for i in ids], np.float32)])
                return server.deployments["agent"]["canary"] is None

            wait_until(play)
            wait_until(lambda: set(agent.get_model_version().values()) == {1})
    record = ModelStore(store).history()[-1]
    assert (record["event"], record["version"], record["to"]) == ("rolled_back", 2, 1)
    why = record["why"]
    assert why["judgement"] == "worse"
    assert why["high"] < 0.0
    assert min(why["episodes"].values()) >= 30
    assert abs(why["mean_returns"]["2"] - 60.0) < 15.0


def test_a_rolled_back_version_stays_so_after_a_restart(folder, tmp_path):
    store = tmp_path / "store"
    plan = f"{folder / '2.onnx'}@10%"
    with serving([folder / "1.onnx"], store=store, canary=plan):
        ModelStore(store).roll_back("agent", by="test")
    with serving([folder / "1.onnx"], store=store, canary=plan) as server:
        assert server.deployments["agent"]["canary"] is None


def test_returns_are_counted_once_and_survive_a_restart(folder, tmp_path, client):
    store = tmp_path / "store"
    report = {"client_id": "a", "sequence": 1, "returns": [["agent", 1, 5.0], ["agent", 2, 3.0], ["agent", 9, 1.0]]}
    with serving([folder / "1.onnx"], store=store, canary=f"{folder / '2.onnx'}@10%") as server:
        asking = client(server)
        for _ in range(3):
            assert asking.call(Message(Kind.STATUS, report), TIMEOUT_S).kind is Kind.STATUS
        wait_until((store / "canary.json").exists)
        wait_until(lambda: json.loads((store / "canary.json").read_text())["agent"]["returns"]["1"] == [1, 5.0, 0.0])
    with serving([folder / "1.onnx"], store=store) as server:
        (trial, _) = server._watch.comparisons()["agent"]
        assert {version: each.count for version, each in trial.returns.items()} == {1: 1, 2: 1}


def test_inference_falls_back_to_this_process_and_returns(folder, caplog):
    server = serving([folder / "1.onnx"])
    server.start()
    port = server.address.rpartition(":")[2]
    builder = AgentBuilder().seed(0).inference(server.address, "client_fallback", timeout_s=0.5)
    with builder.build() as agent:
        ids, obs = agent.get_actor_ids(), np.zeros((1, 4), np.float32)
        expected = agent.request_action(ids, obs)
        server.stop()
        assert same_but_drawn(agent.request_action(ids, obs), expected)
        with InferenceServer(f"tcp://127.0.0.1:{port}", [folder / "1.onnx"]) as again:
            with caplog.at_level(logging.INFO, "relayrl.runtime.remote"):
                wait_until(lambda: agent.request_action(ids, obs) and metric(again, "inference/requests_total") > 0)
            assert "inference is back" in caplog.text


def same_but_drawn(one, other) -> bool:
    return np.allclose(one.value, other.value, atol=1e-5) and one.policy_version.tolist() == [1]


class Broken:
    """An actor that fails when it is told to."""

    def __init__(self, actor):
        self._actor, self.is_broken = actor, False
        self.head, self.memory_width, self.num_calls = actor.head, actor.memory_width, 0

    def forward(self, *arguments):
        self.num_calls += 1
        if self.is_broken:
            raise RuntimeError("broken")
        return self._actor.forward(*arguments)


def test_a_fallback_is_left_with_a_growing_delay(folder):
    from relayrl.models.exports.exported import ExportedActor

    now = [0.0]
    first, second = (Broken(ExportedActor(folder / "1.onnx", with_value=True)) for _ in range(2))
    actor = FallbackActor(first, second, ("here", "there"), retry_s=1.0, max_retry_s=4.0, clock=lambda: now[0])
    obs = np.zeros((1, 4), np.float32)
    actor.forward(obs, None, None)
    first.is_broken = True
    for now[0] in (0.0, 0.5, 1.1, 2.0, 3.2, 4.0, 7.3, 11.0, 11.4):
        actor.forward(obs, None, None)
    # Asked at 0, 1.1 (after 1 s), 3.2 (after 2), 7.3 (after 4) and 11.4 (after 4: the longest), and the once before.
    assert (first.num_calls, second.num_calls) == (6, 9)
    first.is_broken = False
    now[0] = 20.0
    actor.forward(obs, None, None)
    assert (first.num_calls, second.num_calls) == (7, 9)
    first.is_broken = second.is_broken = True
    with pytest.raises(RuntimeError):
        actor.forward(obs, None, None)


def test_without_a_server_requests_fail_by_their_deadline_and_leave_no_trace(folder):
    with pytest.raises(ServerUnreachableError):
        AgentBuilder().inference("tcp://127.0.0.1:9", timeout_s=0.3).build().start()
    server = serving([folder / "1.onnx"])
    server.start()
    with AgentBuilder().inference(server.address, timeout_s=0.3).build() as agent:
        ids, obs = agent.get_actor_ids(), np.zeros((1, 4), np.float32)
        agent.request_action(ids, obs)
        server.stop()
        for _ in range(2):
            with pytest.raises(InferenceError, match="did not answer ACT within"):
                agent.request_action(ids, obs, reward=1.0)


COMMAND = [sys.executable, "-m", "relayrl", "serve", "inference", "--quiet"]


def started(*arguments) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("listening on tcp://"), line
    return process, line.split()[2].rstrip(";")


def test_supervisors_ask_by_http(folder, tmp_path):
    more = ("--http", "127.0.0.1:0", "--store", tmp_path / "store", "--canary", f"{folder / '2.onnx'}@10%")
    process = subprocess.Popen(
        [*COMMAND, *map(str, (folder / "1.onnx", "--bind", LOOPBACK, *more))], stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stderr.readline().split()[-1]

        def page(name):
            with urllib.request.urlopen(url.replace("/status", name), timeout=TIMEOUT_S) as answer:
                return answer.read().decode()

        assert (page("/health"), page("/ready")) == ("healthy\n", "ready\n")
        assert "relayrl_inference_requests_total" in page("/metrics")
        status = json.loads(page("/status"))
        assert status["models"]["agent"]["canary"] == 2
        assert status["canaries"]["agent"]["judgement"] == "undecided"
    finally:
        killed(process)


def killed(process) -> None:
    process.kill()
    process.communicate(timeout=60)


def test_a_killed_server_is_started_again_and_agents_go_on(folder, tmp_path):
    """By the command line, with kill -9; what is deployed is what was."""
    store = tmp_path / "store"
    process, address = started(folder / "1.onnx", "--bind", LOOPBACK, "--store", store)
    try:
        with AgentBuilder().inference(address, timeout_s=1.0).build() as agent:
            ids, obs = agent.get_actor_ids(), np.zeros((1, 4), np.float32)
            agent.request_action(ids, obs)
            ModelStore(store).add((folder / "3.onnx").read_bytes(), "by hand")
            ModelStore(store).promote("agent", 3, by="a person")
            wait_until(lambda: agent.request_action(ids, obs).policy_version.tolist() == [3])
            killed(process)
            with pytest.raises(InferenceError):
                agent.request_action(ids, obs)
            process, _ = started(folder / "1.onnx", "--bind", address, "--store", store)

            def acts() -> bool:
                try:
                    return agent.request_action(ids, obs).policy_version.tolist() == [3]
                except InferenceError:
                    return False

            wait_until(acts)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        killed(process)


def test_threads_of_one_agent_share_passes(folder):
    with (
        serving([folder / "1.onnx"]) as server,
        AgentBuilder().actor_count(8).inference(server.address).build() as agent,
    ):
        ids, obs = agent.get_actor_ids(), np.zeros((1, 4), np.float32)
        errors = []

        def play(i):
            try:
                for _ in range(50):
                    agent.request_action(ids[i : i + 1], obs)
            except Exception as error:  # noqa: BLE001 - shown by the assertion below
                errors.append(error)

        threads = [threading.Thread(target=play, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not errors
        assert metric(server, "inference/actions_total") == 400


def test_a_client_never_loads_torch(folder, tmp_path):
    code = (
        "import sys, numpy as np\nfrom relayrl import AgentBuilder\n"
        "for where in ('server', 'client_fallback'):\n"
        "    with AgentBuilder().inference(sys.argv[1], where).build() as agent:\n"
        "        agent.request_action(agent.get_actor_ids(), np.zeros((1, 4), np.float32))\n"
        "assert not {'torch', 'onnx'} & set(sys.modules), 'torch or onnx'"
    )
    with serving([folder / "1.onnx"]) as server:
        subprocess.run([sys.executable, "-c", code, server.address], check=True, timeout=120)
    assert OBS.shape == (4,)
