"""Health, readiness, metrics, the status line, one configuration for both ends, keys, and a graceful end."""

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from remote_parts import Program, cartpole_server, free_port, serve, stored_ids

import relayrl
from relayrl.errors import ConfigError
from relayrl.servers.training.server_file import server_of_file
from relayrl.servers.training.status_line import status_line
from relayrl.servers.training.training_server import TrainingServer
from relayrl.transport.keys import KeyPair
from waiting import DEADLINE_S, wait_until

ROOT = Path(__file__).parents[2]


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_readiness_metrics_and_status(tmp_path):
    with cartpole_server(tmp_path, steps=1_000_000, server={"http": "127.0.0.1:0"}) as server:
        relayrl.run_remote_actor("CartPole-v1", server.address, spool_base=tmp_path / "spool", max_steps=600)
        assert get(f"{server.http_url}/health")[0] == 200
        assert get(f"{server.http_url}/ready")[0] == 200
        code, text = get(f"{server.http_url}/metrics")
        assert code == 200
        assert f"relayrl_server_trajectories_total {float(server.metrics.received.value)}" in text
        for name in ("server_actors", "server_policy_lag_versions", "server_queue_steps", "transport_bytes_total"):
            assert f"relayrl_{name}" in text
        status = json.loads(get(f"{server.http_url}/status")[1])
        assert status["server/trajectories_total"] == server.metrics.received.value > 0
        assert get(f"{server.http_url}/nothing")[0] == 404


def test_a_server_that_is_not_built_yet_is_healthy_and_not_ready(tmp_path):
    options = {"run_dir": tmp_path / "run", "server": {"http": "127.0.0.1:0"}}
    with TrainingServer("CartPole-v1", bind="tcp://127.0.0.1:0", **options) as server:
        assert get(f"{server.http_url}/health")[0] == 200
        assert get(f"{server.http_url}/ready") == (503, "not ready\n")


def test_the_status_line():
    before = {
        "server/actors": 3.0,
        "server/policy_version": 7.0,
        "server/steps_total": 1000.0,
        "server/updates_total": 10.0,
        "server/policy_lag_versions": 1.0,
        "server/queue_steps": 100.0,
        "transport/bytes_total": 0.0,
        "server/dropped_stale_total": 0.0,
        "server/dropped_invalid_total": 0.0,
    }
    now = {**before, "server/steps_total": 3000.0, "server/updates_total": 14.0, "transport/bytes_total": 4e6}
    now["server/dropped_stale_total"] = 5.0
    assert status_line(before, now, 2.0) == (
        "3 actors · version 7 · 3,000 steps (1,000/s) · 2.0 updates/s · lag 1 · queue 100 steps · 2.0 MB/s · "
        "dropped 5 stale, 0 invalid"
    )


def test_one_file_configures_server_and_agents(tmp_path):
    port = free_port()
    addresses = {"trajectories": f"tcp://127.0.0.1:{port}", "agent_listener": f"tcp://127.0.0.1:{free_port()}"}
    file = tmp_path / "relayrl.json"
    file.write_text(json.dumps({"addresses": addresses, "server": {"training": {"save_interval_s": 33}}}))
    bind, settings = server_of_file(file, {"http": "127.0.0.1:0"})
    assert bind == addresses["trajectories"]
    assert (settings.announce_bind, settings.save_interval_s) == (addresses["agent_listener"], 33)
    options = {"run_dir": tmp_path / "run", "server": settings, "settings": {"evaluation.episodes": 0}}
    with TrainingServer("CartPole-v1", bind=bind, **options) as server:
        server.start()
        with relayrl.AgentBuilder().config_path(file).server(spool=tmp_path / "spool").build() as agent:
            assert len(agent.get_actor_ids()) == 1


def test_the_deployed_configuration_has_upstreams_ports_and_is_valid():
    bind, settings = server_of_file(ROOT / "deploy" / "relayrl.json", {})
    assert (bind, settings.announce_bind) == ("tcp://0.0.0.0:7776", "tcp://0.0.0.0:7777")
    addresses = json.loads((ROOT / "deploy" / "relayrl.json").read_text())["addresses"]
    ports = {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
    assert ports == {"model": 50051, "trajectories": 7776, "agent_listener": 7777, "scaling": 7778, "inference": 7779}


def test_a_misspelt_server_setting_is_an_error(tmp_path):
    file = tmp_path / "relayrl.json"
    file.write_text('{"server": {"training": {"htp": "127.0.0.1:1"}}}')
    with pytest.raises(ConfigError, match="htp"):
        server_of_file(file, {})


def test_off_loopback_a_server_needs_keys(tmp_path):
    with pytest.raises(ConfigError, match="relayrl keys new"):
        TrainingServer("CartPole-v1", bind="tcp://0.0.0.0:0", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_actors_with_a_key_that_is_authorised_come_in(tmp_path):
    own, client = KeyPair.new(), KeyPair.new()
    own_file, client_file = own.save(tmp_path, "server"), client.save(tmp_path, "alice")
    (tmp_path / "authorised_keys").write_text((tmp_path / "alice.pub").read_text())
    with cartpole_server(tmp_path, steps=1_000_000, key=own_file) as server:
        keys = {"key": client_file, "server_key": own.public}
        report = relayrl.run_remote_actor(
            "CartPole-v1", server.address, spool_base=tmp_path / "spool", max_steps=600, **keys
        )
        assert report.num_left == 0
        assert server.metrics.received.value > 0


@pytest.mark.slow
def test_sigterm_answers_saves_and_ends_and_the_same_command_goes_on(tmp_path):
    port = free_port()
    server = serve(tmp_path / "run", port, "--watch")
    actor = Program("actor", "CartPole-v1", "--server", f"tcp://127.0.0.1:{port}", "--spool-dir", tmp_path / "spool")
    try:
        server.wait_for(r"[1-9] actors · version [1-9]")
        server.send(signal.SIGTERM)
        assert server.wait() == 130
        num_stored = len(stored_ids(f"arrow:{tmp_path / 'run' / 'journal'}"))
        assert len(list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))) > 0
        assert actor.is_running
        server = serve(tmp_path / "run", port, "--watch")
        server.wait_for(r"[1-9] actors · version [1-9]")
        wait_until(lambda: len(stored_ids(f"arrow:{tmp_path / 'run' / 'journal'}")) > num_stored)
        actor.send(signal.SIGTERM)
        assert actor.wait() == 0, actor.lines
    finally:
        server.kill()
        actor.kill()
