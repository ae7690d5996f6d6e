"""The rows of teams: which are run, and that settings given beside the preset reach them."""

import sys

import pytest

import teams


@pytest.fixture
def asked(monkeypatch):
    """Runs that were asked for: environment, algorithm, steps, seed and options."""
    runs = []

    def learn(row, seed, given):
        options = row.options | {key.rsplit(".", 1)[1]: value for key, value in given.items()}
        runs.append((row.env, row.algo, row.num_steps, seed, options))
        return "| row |"

    monkeypatch.setattr(teams, "learn", learn)
    return runs


def test_rows_are_chosen_by_environment_and_algorithm(asked, monkeypatch):
    options = ["--env", "native:baton_pass", "--algo", "mappo", "--seeds", "3,4", "--steps", "500"]
    monkeypatch.setattr(sys, "argv", ["teams.py", *options, "--set", "environment.options.num_agents=5"])
    teams.main()
    of_both = "native:baton_pass", "mappo", 500
    assert asked == [(*of_both, seed, {"absorbing": True, "num_agents": 5}) for seed in (3, 4)]


def test_a_setting_of_the_command_joins_the_options_of_a_row():
    row = teams.TeamRow("native:baton_pass", "mappo", 2_048, {"absorbing": True})
    line = teams.learn(row, 0, {"environment.options.num_agents": 4, "evaluation.episodes": 2})
    assert line.startswith("| `native:baton_pass` | mappo, absorbing | 0 |")
    with pytest.raises(teams.relayrl.errors.ConfigError, match="do not fit"):
        teams.learn(row, 0, {"environment.options.num_agents": 24})
