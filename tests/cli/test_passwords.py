"""The password of a URL is in nothing that a run writes or says."""

from pathlib import Path

import pytest
import yaml

from cli_in_process import relayrl
from relayrl.config.passwords import hide_password_of, without_hidden, without_password
from relayrl.engines.settings.run_settings import RunSettings

SECRET = "hunter2secret"
URL = f"postgresql://ann:{SECRET}@127.0.0.1:1/records"
TINY = ["--steps", "16", "--quiet", "--set", "num_envs=2", "--set", "time_horizon=8"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h/db", "postgresql://u:***@h/db"),
        ("postgresql://:p@h/db", "postgresql://:***@h/db"),
        ("postgresql://u:p@ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p?q@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p/q@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:pa ss@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:p @h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:12/p@h/db", "postgresql://u:***@h/db"),
        ("postgresql:u:p@h/db", "postgresql:u:***@h/db"),
        ("postgresql://h:1/db?pass%77ord=p", "postgresql://h:1/db?pass%77ord=***"),
        ("postgresql://h:5432/db: no user@host", "postgresql://h:5432/db: no user@host"),
        ("postgresql://u@h/db?sslmode=require&password=p", "postgresql://u@h/db?sslmode=require&password=***"),
        ("postgresql://h:5432/db?user=a@b", "postgresql://h:5432/db?user=a@b"),
        ("arrow:runs/a:b@c", "arrow:runs/a:b@c"),
    ],
)
def test_passwords_are_hidden_and_nothing_else(url, shown):
    assert without_password(url) == shown
    assert without_password(shown) == shown


def test_a_hidden_password_is_left_to_the_driver():
    assert (
        without_hidden("postgresql://u:***@h/db?password=***&sslmode=require") == "postgresql://u@h/db?sslmode=require"
    )


def test_a_drivers_message_is_cleared_of_the_password():
    url = "postgresql://u:pa%20ss@h/db"
    told = hide_password_of(url, 'invalid token "pa%20ss" in postgresql://u:pa%20ss@h/db, or was it "pa ss"?')
    assert told == 'invalid token "***" in postgresql://u:***@h/db, or was it "***"?'


def test_settings_are_stored_compared_and_shown_without_passwords():
    settings = RunSettings.model_validate({"env": "CartPole-v1", "record": URL, "learn_from": URL})
    assert settings.record == URL
    stored = yaml.safe_load(settings.to_yaml())
    assert stored["record"] == stored["learn_from"] == "postgresql://ann:***@127.0.0.1:1/records"
    assert SECRET not in repr(settings)


def test_demonstrations_in_a_database_are_stored_without_passwords():
    values = {"reward_signals": {"gail": {"options": {"demo_path": URL}}}, "behavioral_cloning": {"demo_path": URL}}
    settings = RunSettings.model_validate({"env": "CartPole-v1", **values})
    assert settings.behavioral_cloning.demo_path == settings.reward_signals["gail"].options["demo_path"] == URL
    assert SECRET not in settings.to_yaml() + repr(settings)


COMMANDS = {
    "record": ["train", "native:CartPole", "--run-dir", "new", *TINY, "--record", URL],
    "from": ["train", "native:Pendulum", "--algo", "sac", "--run-dir", "new", *TINY, "--from", URL],
    "a list": ["train", "native:CartPole", "--run-dir", "new", *TINY, "--set", f"record=[{URL}]"],
    "print": ["train", "native:CartPole", "--record", URL, "--print-config"],
    "inspect": ["data", "inspect", URL, "--json"],
    "convert": ["data", "convert", URL, URL],
    "broken port": ["data", "inspect", f"postgresql://ann:{SECRET}/x@127.0.0.1:1/records"],
    "broken percent": ["data", "inspect", f"postgresql://ann:{SECRET}%zz@127.0.0.1:1/records"],
    "debug": ["data", "inspect", URL, "--debug"],
}


@pytest.mark.parametrize("case", COMMANDS)
def test_commands_do_not_show_it(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = relayrl(*COMMANDS[case])
    assert "ann" in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_resuming_says_where_the_password_may_come_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert relayrl("train", "native:CartPole", "--run-dir", "run", *TINY).returncode == 0
    config = Path("run/config.yaml")
    config.write_text(config.read_text().replace("record: null", f"record: {without_password(URL)}"))
    done = relayrl("train", "--resume", "--run-dir", "run", "--quiet")
    assert done.returncode == 1
    assert "--record" in done.complaint
    assert "PGPASSWORD" in done.complaint
    again = relayrl("train", "--resume", "--run-dir", "run", "--record", URL)  # refused for its server alone
    assert "is the server running?" in again.complaint
    assert "resuming with" not in again.stderr
