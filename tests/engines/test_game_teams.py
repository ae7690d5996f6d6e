"""Who plays together: from settings, from names, and what is refused."""

import json

import numpy as np
import pytest
from gymnasium import spaces

import relayrl
from cli_in_process import relayrl as command
from relayrl.engines.self_play.game_teams import agents_of_teams, form_teams
from relayrl.envs.agent_groups import group_agents
from relayrl.envs.environment_contract import AgentGroup
from relayrl.errors import ConfigError

BOX, FEW = spaces.Box(0, 1, (2,)), spaces.Discrete(2)


def group(name, *agents):
    return AgentGroup(name, agents, BOX, FEW)


ONE = {"player": group("player", "player_0", "player_1")}
TWO = {"wolf": group("wolf", "wolf_0", "wolf_1"), "sheep": group("sheep", "sheep")}


def test_agents_of_the_only_group_are_teams_of_one_side():
    teams = form_teams(ONE, None)
    assert teams.names == ("player_0", "player_1")
    assert [(side.name, side.teams) for side in teams.sides] == [("player", (0, 1))]


def test_groups_are_teams_with_policies_of_their_own():
    teams = form_teams(TWO, None)
    assert teams.names == ("wolf", "sheep")
    assert [(side.name, side.groups, side.teams) for side in teams.sides] == [
        ("wolf", ("wolf",), (0,)),
        ("sheep", ("sheep",), (1,)),
    ]


def test_teams_are_given_by_agent_group_or_pattern():
    four = {"player": group("player", "red_0", "red_1", "blue_0", "blue_1")}
    teams = form_teams(four, {"red_*": "red", "blue_0": "blue", "blue_1": "blue"})
    assert teams.names == ("red", "blue")
    assert teams.of_agents["player"].tolist() == [0, 0, 1, 1]
    assert form_teams(TWO, {"wolf": "a", "sheep": "b"}).names == ("a", "b")


def test_a_team_of_several_groups_is_played_by_all_their_policies():
    groups = {"striker": group("striker", "s_0", "s_1"), "goalie": group("goalie", "g_0", "g_1")}
    teams = form_teams(groups, {"*_0": "red", "*_1": "blue"})
    assert [(side.name, side.groups, side.teams) for side in teams.sides] == [
        ("striker+goalie", ("striker", "goalie"), (0, 1))
    ]


def test_ml_agents_names_say_the_team_and_share_a_policy():
    agents = ("Soccer?team=0", "Soccer?team=1")
    groups = group_agents(agents, dict.fromkeys(agents, BOX), dict.fromkeys(agents, FEW))
    assert {name: own.agent_ids for name, own in groups.items()} == {"Soccer": agents}
    assert form_teams(groups, None).names == ("team 0", "team 1")
    several = ("p_0?team=0", "p_1?team=0", "p_2?team=1", "p_3?team=1")
    groups = group_agents(several, dict.fromkeys(several, BOX), dict.fromkeys(several, FEW))
    assert form_teams(groups, None).of_agents["p"].tolist() == [0, 0, 1, 1]


def test_results_are_the_mean_returns_of_teams():
    teams = form_teams(TWO, None)
    results = teams.results({"wolf": np.array([[1.0, 3.0]]), "sheep": np.array([[-4.0]])})
    assert results.tolist() == [[2.0, -4.0]]


@pytest.mark.parametrize(
    ("groups", "given", "message"),
    [
        ({"agent": group("agent", "agent_0")}, None, "needs two teams"),
        (ONE, {"player_*": "all"}, "needs two teams"),
        (ONE, {"player_0": "a"}, "no team for agent 'player_1'"),
    ],
)
def test_a_game_without_an_opponent_is_refused(groups, given, message):
    with pytest.raises(ConfigError, match=message):
        form_teams(groups, given)


def test_teams_that_agents_name_are_teams_without_self_play():
    named = {"all": group("all", "a?team=0", "b?team=0", "c?team=1")}
    assert agents_of_teams(None, named) == (("a?team=0", "b?team=0"), ("c?team=1",))
    assert agents_of_teams(None, {"all": group("all", "a?team=0", "b?team=0")}) == ()
    assert agents_of_teams(None, {"all": group("all", "a?team=0", "b")}) == ()
    assert agents_of_teams(None, {"all": group("all", "a", "b")}) == ()


def test_a_game_that_a_team_wins_is_won_though_a_teammate_is_not_scored(tmp_path):
    """Goals of `native:soccer` count for both players of a team."""
    settings = {"evaluation.episodes": 12, "evaluation.opponents": ["random"]}
    run = relayrl.train("native:soccer", algo="ippo", steps=2048, run_dir=tmp_path, settings=settings, progress=False)
    told = command("evaluate", str(tmp_path), "--episodes", "24", "--opponent", "random", "--json")
    match = json.loads(told.stdout.splitlines()[-1])["opponents"]["random"]
    python = run.evaluate(episodes=24, opponents=["random"]).matches["random"]
    assert match["win_rate"] == python.to_json()["win_rate"] == np.mean(np.array(python.returns) > 0)
    assert {round(abs(each), 6) for each in python.returns} == {0.0, 1.0}
