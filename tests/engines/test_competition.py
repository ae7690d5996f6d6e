"""Returns of groups and agents, and what competing agents are scored by: in evaluations, statistics, files, pictures."""

import json
import re

import numpy as np
import pytest
import torch
import yaml

import relayrl
from cli_in_process import relayrl as command
from relayrl.data.trees import Array, Tree, leaves
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import RunInterrupted, RunResult
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.acting.actor import Actor
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.runtime.evaluation import EvaluationResult, evaluate
from relayrl.runtime.scored_agents import ScoredAgents, random_actors
from relayrl.training.files.checkpoints import load_checkpoint

GAME = "relayrl.testing.toy_environments:MatrixGame"
NUMBERS = np.sign(np.subtract.outer(np.arange(4), np.arange(4)))
HIGHER_WINS = [NUMBERS.tolist(), (-NUMBERS).tolist()]
WITH_COSTS = [(NUMBERS - 0.5).tolist(), (-NUMBERS - 0.5).tolist()]
"""Both pay half a point: not zero-sum."""
CONNECT_FOUR = "pettingzoo:classic.connect_four_v3"
QUICK = {"num_envs": 4, "time_horizon": 16, "hidden_sizes": [8], "train_pi_iters": 1, "train_vf_iters": 1}
QUICK |= {"num_minibatches": 1, "evaluation.interval": 128, "evaluation.interval_episodes": 4}


class Always(Actor):
    """Takes one action, whatever it sees."""

    def __init__(self, head, action: int) -> None:
        self.head, self._action = head, action

    def distribution(self, obs: Tree, mask: Array | None = None) -> Array:
        num_rows = len(next(iter(leaves(obs)))[1])
        preferred = np.where(np.arange(self.head.num_outputs) == self._action, 50.0, 0.0).astype(np.float32)
        return self.head.parameters_numpy(np.repeat(preferred[None], num_rows, axis=0), mask)


def play(own: int, theirs: int | None = None, payoffs=None, sharing="shared", episodes=8, **more) -> EvaluationResult:
    """Episodes of policies that always choose the number `own`, against one that always chooses `theirs`."""
    options = {"payoffs": HIGHER_WINS if payoffs is None else payoffs}
    env = make_vector(GAME, EnvSettings(num_envs=4, sharing=sharing, options=options))
    heads = {name: likelihood_head(group.action_space) for name, group in env.groups.items()}
    actors = {name: Always(head, own) for name, head in heads.items()}
    if theirs is not None:
        more["opponents"] = {"other": {name: Always(head, theirs) for name, head in heads.items()}}
    try:
        return evaluate(env, actors, episodes=episodes, seed=0, **more)
    finally:
        env.close()


def test_every_side_plays_against_the_opponent_in_turn():
    result = play(3, 1)
    assert result.returns == (1.0,) * 8  # from either side, although the two sides' rewards cancel
    assert (result.mean_return, result.matches["other"].win_rate) == (1.0, 1.0)
    assert result.agent_returns == {"player_0": 0.0, "player_1": 0.0}  # among themselves: 3 against 3
    assert result.scored_by == "every side in turn, against other"
    assert (play(1, 1).matches["other"].draw_rate, play(0, 1).matches["other"].loss_rate) == (1.0, 1.0)
    assert play(0, 1).mean_return == -1.0


@pytest.mark.parametrize("scored", [ScoredAgents(agent="player_1"), ScoredAgents(group="player_1")])
def test_one_side_may_be_score_alone(scored):
    payoffs = [np.full((4, 4), 7.0).tolist(), (-NUMBERS).tolist()]  # the first player gets 7 whatever happens
    result = play(3, 1, payoffs, sharing="separate", scored=scored)
    assert (result.mean_return, result.matches["other"].win_rate) == (1.0, 0.0)  # 1 < 7
    assert result.scored_by == f"{scored.name}, against other"
    alone = play(3, payoffs=payoffs, sharing="separate", scored=scored)
    assert (alone.mean_return, alone.scored_by) == (0.0, scored.name)
    assert alone.group_returns == alone.agent_returns == {"player_0": 7.0, "player_1": 0.0}


def test_a_group_of_all_agents_plays_every_side_in_turn():
    named, unnamed = (
        play(3, is_zero_sum=True, scored=scored) for scored in (ScoredAgents(group="player"), ScoredAgents())
    )
    assert named.scored_by == "every side in turn, against random"
    assert (named.returns, named.matches) == (unnamed.returns, unnamed.matches)
    with pytest.raises(ConfigError, match=r"all agents are in group 'player'.*leave evaluation.group out"):
        play(3, 1, scored=ScoredAgents(group="player"))


def test_a_run_may_name_the_only_group_of_a_zero_sum_game(tmp_path):
    settings = QUICK | {"evaluation.group": "player", "evaluation.episodes": 4}
    run = relayrl.train(CONNECT_FOUR, steps=256, run_dir=tmp_path / "a", settings=settings, progress=False)
    assert run.result.scored_by == "every side in turn, against random"
    assert run.evaluate(episodes=4, group="player").scored_by == "every side in turn, against random"
    settings |= {"evaluation.opponents": ["random"]}
    with pytest.raises(ConfigError, match="all agents are in group 'player'"):
        relayrl.train(CONNECT_FOUR, steps=256, run_dir=tmp_path / "b", settings=settings, progress=False)
    assert not list((tmp_path / "b").rglob("*.ckpt"))


def test_zero_sum_is_recognised_by_returns_that_cancel():
    assert play(2).is_zero_sum is None  # nobody won
    assert play(2).matches == {}
    told = play(3, is_zero_sum=True)
    assert list(told.matches) == ["random"]
    assert told.matches["random"].loss_rate == 0.0  # nothing is higher than 3
    assert told.mean_return == told.matches["random"].win_rate > 0.0
    assert play(3, payoffs=WITH_COSTS).is_zero_sum is False
    assert play(3, payoffs=WITH_COSTS).mean_return == -0.5
    assert play(3, is_zero_sum=True, opponents={}).matches == {}


def test_random_opponents_win_as_often_as_chance_has_it():
    env = make_vector(GAME, EnvSettings(num_envs=4, options={"payoffs": HIGHER_WINS}))
    actors = {name: Always(likelihood_head(group.action_space), 2) for name, group in env.groups.items()}
    try:
        result = evaluate(env, actors, episodes=2_000, seed=0, opponents={"random": random_actors(actors)})
    finally:
        env.close()
    match = result.matches["random"]
    # 2 beats 0 and 1, draws with 2 and loses to 3; four standard errors of 2,000 episodes are 0.045 and less.
    assert match.win_rate == pytest.approx(0.5, abs=0.045)
    assert match.draw_rate == pytest.approx(0.25, abs=0.045)


def test_names_that_the_environment_does_not_have_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="player_2"):
        play(1, scored=ScoredAgents(agent="player_2"))
    for settings, complaint in (
        ({"evaluation.group": "nobody"}, "nobody"),
        ({"evaluation.agent": "a", "evaluation.group": "b"}, "not both"),
        ({"evaluation.opponents": ["myself"]}, "evaluation.opponents"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            relayrl.train(CONNECT_FOUR, run_dir=tmp_path / "run", settings=settings, progress=False)
        assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="nobody plays against each other"):
        relayrl.train("CartPole-v1", run_dir=tmp_path / "r", settings={"opponents": ["random"]}, progress=False)


@pytest.fixture(scope="module")
def connect_four(tmp_path_factory) -> relayrl.Run:
    path = tmp_path_factory.mktemp("game") / "run"
    done = command("train", CONNECT_FOUR, "--steps", "768", "--run-dir", str(path), *flags(QUICK))
    assert done.returncode == 0
    (path / "console").write_text(done.stdout + done.stderr)
    return relayrl.load_run(path)


def flags(settings) -> list[str]:
    return [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]


def test_a_zero_sum_run_is_scored_against_random_players(connect_four):
    result = connect_four.result
    assert result.scored_by == "every side in turn, against random"
    assert result.mean_return == result.opponents["random"]["mean_return"] != 0.0
    assert sum(result.agent_returns.values()) == 0.0
    assert set(result.agent_returns) == {"player_0", "player_1"}
    said = (connect_four.path / "console").read_text()
    assert "the agents' returns cancel (zero-sum), so evaluations score every side in turn against random" in said
    assert re.search(r"return by agent: player_0 -?[\d.]+, player_1 -?[\d.]+", said)
    assert re.search(r"against random: won \d+%, drawn \d+%, lost \d+% of 20 episodes", said)


def test_its_statistics_have_each_players_returns_and_the_win_rate(connect_four):
    history = connect_four.history
    assert np.allclose(history["episode/return_mean"], 0.0)
    first, second = (history[f"agents/player_{i}/episode/return_mean"] for i in (0, 1))
    assert np.allclose(np.add(first, second), 0.0)
    assert np.abs(first).max() > 0.0
    evaluated = np.isfinite(history["evaluation/return_mean"])
    assert evaluated.sum() == 6
    scored = np.array(history["evaluation/return_mean"])[evaluated]
    assert np.array_equal(scored, np.array(history["evaluation/random/return_mean"])[evaluated])
    wins = np.array(history["evaluation/random/win_rate"])[evaluated]
    draws = np.array(history["evaluation/random/draw_rate"])[evaluated]
    assert np.allclose(scored, wins - (1.0 - wins - draws))  # a game pays 1, 0 or -1


def test_the_best_checkpoint_is_the_best_against_the_opponent(connect_four):
    column = np.array(connect_four.history["evaluation/random/return_mean"])
    steps = np.array(connect_four.history["num_env_steps"])[np.isfinite(column)]
    column = column[np.isfinite(column)]
    best_steps, best = load_checkpoint(connect_four.directory.best_checkpoint())
    assert best["metrics"]["evaluation/return_mean"] == column.max() == connect_four.result.best_return
    assert best_steps == steps[np.argmax(column)]


def test_the_target_is_what_is_reached_against_the_opponent(tmp_path):
    settings = QUICK | {"target_return": -1.0}  # the mean over the players never is other than 0
    run = relayrl.train(CONNECT_FOUR, steps=768, run_dir=tmp_path / "a", settings=settings, progress=False)
    assert (run.result.num_env_steps, run.result.reached_target) == (128, True)
    settings = QUICK | {"target_return": 1.5, "evaluation.agent": "player_0", "evaluation.opponents": []}
    run = relayrl.train(CONNECT_FOUR, steps=256, run_dir=tmp_path / "b", settings=settings, progress=False)
    assert (run.result.reached_target, run.result.scored_by) == (False, "agent player_0")
    history = run.history
    assert history["evaluation/return_mean"][-1] == history["agents/player_0/evaluation/return_mean"][-1] != 0.0
    assert history["episode/return_mean"] == history["agents/player_0/episode/return_mean"]


def test_evaluate_shows_and_writes_them(connect_four):
    done = command("evaluate", str(connect_four.path), "--episodes", "6", "--json")
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert numbers["scored_by"] == "every side in turn, against random"
    assert numbers["mean_return"] == numbers["opponents"]["random"]["mean_return"] == np.mean(numbers["returns"])
    assert set(numbers["agent_returns"]) == {"player_0", "player_1"}
    assert numbers["group_returns"] == {"player": 0.0}
    assert "return by agent: player_0" in done.stdout
    same = connect_four.evaluate(episodes=6)
    assert (list(same.returns), same.agent_returns) == (numbers["returns"], numbers["agent_returns"])


def test_evaluate_takes_the_opponents_and_the_score(connect_four):
    options = ("--opponent", str(connect_four.path), "--opponent", "random", "--agent", "player_1", "--episodes", "4")
    done = command("evaluate", str(connect_four.path), *options)
    assert f"(agent player_1, against {connect_four.path})" in done.stdout
    assert f"against {connect_four.path}: won" in done.stdout
    assert "against random: won" in done.stdout
    here = connect_four.evaluate(episodes=4, agent="player_1", opponents=[connect_four.path, "random"])
    assert list(here.matches) == [str(connect_four.path), "random"]
    done = command("evaluate", str(connect_four.path), "--opponent", "previous")
    assert "exists while a run trains" in done.complaint
    assert done.returncode == 2


def test_curves_may_be_drawn_by_agent(connect_four, tmp_path):
    picture = tmp_path / "agents.svg"
    done = command("plot", str(connect_four.path), "-o", str(picture), "--by", "agent")
    assert done.returncode == 0, done.stderr
    drawn = picture.read_text()
    assert "player_0" in drawn
    assert "player_1, evaluation" in drawn
    assert "by group" in command("plot", str(connect_four.path), "-o", str(picture), "--by", "group").complaint


def test_groups_that_do_not_cancel_are_shown_and_scored_by_the_mean(tmp_path):
    done = command(
        "train", "native:simple_tag", "--algo=ippo", "--steps=256", f"--run-dir={tmp_path / 'run'}", *flags(QUICK)
    )
    run = relayrl.load_run(tmp_path / "run")
    groups, agents = run.result.group_returns, run.result.agent_returns
    assert run.result.scored_by == "mean over agents"
    assert run.result.opponents == {}
    assert run.result.mean_return == pytest.approx(np.mean(list(agents.values())))
    assert groups["adversary"] == pytest.approx(np.mean([agents[f"adversary_{i}"] for i in range(3)]))
    assert "return by group: adversary" in done.stdout
    assert "zero-sum" not in done.stderr
    assert "adversary/evaluation/return_mean" in run.history
    picture = tmp_path / "groups.svg"
    command("plot", str(tmp_path / "run"), "-o", str(picture), "--by", "group")
    assert ": adversary" in picture.read_text()


def test_a_group_that_is_named_decides(tmp_path):
    settings = QUICK | {"evaluation.group": "adversary", "evaluation.opponents": ["random"]}
    run = relayrl.train(
        "native:simple_tag", algo="ippo", steps=256, run_dir=tmp_path, settings=settings, progress=False
    )
    assert run.result.scored_by == "group adversary, against random"
    assert np.array_equal(
        run.history["episode/return_mean"], run.history["adversary/episode/return_mean"], equal_nan=True
    )
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["evaluation"]["opponents"] == ["random"]


PREVIOUS = {"evaluation.opponents": ["previous", "random"], "checkpoint_interval": 64, "keep_checkpoints": 50}


def engine_of(path, **flags) -> LocalEngine:
    settings = build_run_settings("native:simple_tag", None, {"algo": "ippo"} | flags, list((QUICK | PREVIOUS).items()))
    directory = RunDirectory(path)
    if not directory.config.exists():
        directory.create(settings)
    return LocalEngine(settings, directory, tensorboard=False)


def test_earlier_selves_are_opponents_also_after_a_resume(tmp_path):
    whole = engine_of(tmp_path / "whole", **{"trainer.max_steps": 640}).run(lambda _: None)
    seen = []
    with pytest.raises(RunInterrupted):
        engine_of(tmp_path / "parts", **{"trainer.max_steps": 640}).run(seen.append, lambda: len(seen) == 5)
    again = engine_of(tmp_path / "parts", **{"trainer.max_steps": 640})
    assert again.resume()
    resumed = again.run(lambda _: None)
    assert resumed.parameter_hash == whole.parameter_hash
    assert (resumed.opponents, resumed.best_return) == (whole.opponents, whole.best_return)
    assert whole.scored_by == "every side in turn, against previous"
    assert list(whole.opponents) == ["previous", "random"]
    columns = [
        {
            step: value
            for step, value in zip(h["num_env_steps"], h["evaluation/previous/return_mean"], strict=True)
            if value == value
        }
        for h in (relayrl.load_run(tmp_path / name).history for name in ("whole", "parts"))
    ]
    assert columns[0] == columns[1]
    assert len(columns[0]) == 5
    assert len(set(columns[0].values())) > 1
    at = {
        step: load_checkpoint(tmp_path / "whole" / "checkpoints" / f"step_{step:012d}.ckpt")[1] for step in (256, 320)
    }
    frozen = at[320]["evaluation"]["previous"]["adversary"]
    evaluated, newer = (at[step]["trainer"]["groups"]["adversary"]["policy"] for step in (256, 320))
    assert all(torch.equal(frozen[name], evaluated[name]) for name in evaluated)
    assert not all(torch.equal(frozen[name], newer[name]) for name in newer)


def test_a_best_return_of_another_score_does_not_count_after_a_resume(tmp_path):
    settings = QUICK | {"evaluation.opponents": ["random"]}
    relayrl.train(CONNECT_FOUR, steps=256, run_dir=tmp_path, settings=settings, progress=False)
    other = {"evaluation.opponents": [], "evaluation.agent": "player_0"}
    run = relayrl.train(run_dir=tmp_path, resume=True, steps=512, settings=other, progress=False)
    scored = [
        r for s, r in zip(run.history["num_env_steps"], run.history["evaluation/return_mean"], strict=True) if s > 256
    ]
    assert run.result.best_return == np.nanmax(scored)


def test_the_former_name_of_who_is_scored_works_for_one_release():
    old = RunResult("e", "ppo", 0, 1, 1.0, 1.0, 2.0, 0.0, 2.0, "", "runs/x", scored_by="agent a")
    with pytest.warns(DeprecationWarning, match="judged_by is scored_by now"):
        assert old.judged_by == "agent a"
    values = json.loads(old.to_json())
    assert values["judged_by"] == values.pop("scored_by") == "agent a"
    assert RunResult.from_json(json.dumps(values)).scored_by == "agent a"
    assert RunResult.from_json(old.to_json()).scored_by == "agent a"
    played = EvaluationResult((1.0,), (1,), (False,), 1, agent_episodes={"a": (1.0,), "b": (1.0,)})
    with pytest.warns(DeprecationWarning, match="judged_by is scored_by now"):
        assert played.judged_by == "mean over agents"
