"""Self-play from outside: who plays, what is learned from, recorded, resumed, evaluated and exported."""

import json

import numpy as np
import pytest

import relayrl
from cli_in_process import relayrl as command
from relayrl.errors import ConfigError, RelayRLError

SMALL = {
    "environment.num_envs": 4,
    "network.hidden_sizes": [8],
    "trainer.time_horizon": 16,
    "params.num_minibatches": 1,
    "evaluation.episodes": 4,
    "statistics.tensorboard": False,
    "self_play.save_steps": 128,
    "self_play.swap_steps": 64,
    "self_play.window": 3,
}
TURNS = "relayrl.testing:KuhnPoker"


class Rollouts(relayrl.Callback):
    """Keeps who was learned from, [T, B, N] by group, of every rollout."""

    def __init__(self):
        self.valid = []

    def on_rollout(self, run):
        self.valid.append({name: np.array(rollout.joint(rollout.valid)) for name, rollout in run.rollouts.items()})


def train(env, run_dir, settings=None, **more):
    return relayrl.train(env, run_dir=run_dir, settings={**SMALL, **(settings or {})}, progress=False, **more)


def recorded(url):
    """Trajectories by environment, episode and agent."""
    with relayrl.open_source(url) as source:
        return {(t.env_id, t.episode, t.agent_id, t.first_step): t for t in source}


def test_one_team_of_an_environment_learns_at_a_time_and_every_team_does(tmp_path):
    seen = Rollouts()
    train("native:pong", tmp_path / "run", steps=1024, callbacks=[seen])
    valid = np.concatenate([rollouts["player"] for rollouts in seen.valid])
    assert (valid.sum(-1) == 1).all()  # both act in every step of the game
    assert 0.3 < valid[..., 0].mean() < 0.7


class Poison(relayrl.Callback):
    """Replaces what opponents saw, did and got by nonsense before it could be learned from."""

    def __init__(self):
        self.num_rows = 0

    def on_rollout(self, run):
        for rollout in run.rollouts.values():
            others = ~rollout.valid
            rollout.obs[others] = 7.0
            rollout.action[others] = 0
            rollout.reward[others] = 1e3
            self.num_rows += int(others.sum())


REPLAY = {"params.learning_starts": 64, "params.batch_size": 16, "params.update_interval": 4}
REPLAYED = {name: value for name, value in SMALL.items() if not name.startswith("params.")} | REPLAY


@pytest.mark.parametrize(
    ("env", "algo", "settings"),
    [
        ("native:pong", "ppo", {**SMALL, "network.normalize_observations": True}),
        ("native:soccer", "poca", {**SMALL, "environment.options": {"max_episode_steps": 20}}),
        ("native:simple_tag", "sac", {**REPLAYED, "environment.options": {"continuous_actions": True}}),
    ],
)
def test_what_opponents_do_never_reaches_the_update(env, algo, settings, tmp_path):
    poison, hashes = Poison(), []
    for name, callbacks in (("clean", []), ("poisoned", [poison])):
        run = relayrl.train(
            env, algo=algo, steps=512, run_dir=tmp_path / name, settings=settings, callbacks=callbacks, progress=False
        )
        hashes.append(run.result.parameter_hash)
    assert poison.num_rows >= 512
    assert hashes[0] == hashes[1]


def test_records_keep_both_sides_with_the_versions_that_acted(tmp_path):
    seen = Rollouts()
    url = f"arrow:{tmp_path / 'record'}"
    settings = {"record": url, "self_play.play_against_latest_model_ratio": 0.0}
    run = train(TURNS, tmp_path / "run", settings, steps=1024, callbacks=[seen])
    num_learned = sum(int(rollouts["player"].sum()) for rollouts in seen.valid)
    rows = list(recorded(url).values())
    assert sum(len(each) for each in rows) == 1024  # one player acts in a step
    assert 0.3 * 1024 < num_learned < 0.7 * 1024
    versions = [int(version) for each in rows for version in each.policy_version]
    # A snapshot is at least as old as the rollout: of step 0, or of a multiple of 128 steps, two updates.
    assert run.result.num_env_steps == 1024
    assert sum(version % 2 == 0 for version in versions) > 0.6 * len(versions)


def test_players_who_take_turns_are_learned_from_on_their_turns_only(tmp_path):
    seen = Rollouts()
    train("relayrl.testing:TakingTurns", tmp_path / "run", steps=512, callbacks=[seen])
    valid = np.concatenate([rollouts["player"] for rollouts in seen.valid])
    assert (valid.sum(-1) <= 1).all()
    assert 0.3 < valid.any(-1).mean() < 0.7


def test_the_learning_group_changes_where_teams_have_policies_of_their_own(tmp_path):
    seen = Rollouts()
    run = train(
        "native:simple_tag",
        tmp_path / "run",
        {"self_play.team_change": 256, "environment.options": {"max_cycles": 8}},
        steps=1024,
        callbacks=[seen],
    )
    learns = [{name for name, own in rollouts.items() if own[-1].any()} for rollouts in seen.valid]
    assert learns[0] == learns[3] == {"adversary"}
    assert learns[7] == {"agent_0"}
    assert all(len(names) == 1 for names in learns)
    row = {name: numbers[-1] for name, numbers in run.history.items()}
    ratings = row["adversary/self_play/elo"], row["agent_0/self_play/elo"]
    assert all(1000 < rating < 1400 for rating in ratings)
    assert row["self_play/elo"] in ratings


def test_dying_agents_of_unequal_groups_play_against_each_other(tmp_path):
    run = train("relayrl.testing:DyingAgents", tmp_path / "run", {"self_play.team_change": 128}, steps=512)
    assert run.result.num_env_steps == 512
    # Wolves get ten times as much: they win every game, whoever learns.
    ladder = json.loads(command("ladder", str(tmp_path / "run"), "--json").stdout)
    elo = {row["side"]: row["elo"] for row in ladder["learners"]}
    assert elo["wolf_0"] > 1200 > elo["sheep"]


def test_ratings_are_zero_sum_between_learner_and_window(tmp_path):
    train("native:pong", tmp_path / "run", {"self_play.window": 100, "self_play.initial_elo": 1000.0}, steps=1024)
    done = command("ladder", str(tmp_path / "run"), "--json", "-o", str(tmp_path / "ladder.png"))
    ladder = json.loads(done.stdout)
    assert (tmp_path / "ladder.png").stat().st_size > 1000
    (learner,) = ladder["learners"]
    assert [row["step"] for row in ladder["snapshots"]] == list(range(0, 1025, 128))
    # Every snapshot enters with the learner's rating of that moment; what either side gains the other loses.
    assert learner["games"] > 10
    table = command("ladder", str(tmp_path / "run")).stdout.splitlines()
    assert len(table) == 1 + 1 + 9
    assert "learner" in "".join(table)
    assert sum(row["games"] for row in ladder["snapshots"]) <= learner["games"]
    assert all(row["elo_error"] > 0 for row in ladder["snapshots"] if row["games"])


def test_workers_and_threads_of_environments_change_no_bit(tmp_path):
    one = train(TURNS, tmp_path / "one", steps=512)
    two = train(TURNS, tmp_path / "two", {"environment.workers": 2}, steps=512)
    assert one.result.parameter_hash == two.result.parameter_hash


def test_a_run_that_was_stopped_and_resumed_is_the_run_that_was_not(tmp_path):
    whole = train(TURNS, tmp_path / "whole", {"record": f"arrow:{tmp_path / 'a'}"}, steps=1024)
    train(TURNS, tmp_path / "parts", {"record": f"arrow:{tmp_path / 'b'}"}, steps=512)
    parts = relayrl.train(TURNS, run_dir=tmp_path / "parts", resume=True, steps=1024, progress=False)
    assert parts.result.parameter_hash == whole.result.parameter_hash
    ladders = [command("ladder", str(tmp_path / name), "--json").stdout for name in ("whole", "parts")]
    assert ladders[0] == ladders[1]
    sizes = [sum(len(each) for each in recorded(f"arrow:{tmp_path / name}").values()) for name in "ab"]
    assert sizes == [1024, 1024]


def test_a_team_that_was_stopped_and_resumed_is_the_team_that_was_not(tmp_path):
    settings = {"environment.options": {"max_episode_steps": 20}, "evaluation.episodes": 0}
    whole = train("native:soccer", tmp_path / "whole", settings, algo="poca", steps=256)
    train("native:soccer", tmp_path / "parts", settings, algo="poca", steps=128)
    parts = relayrl.train(run_dir=tmp_path / "parts", resume=True, steps=256, progress=False)
    assert parts.result.parameter_hash == whole.result.parameter_hash


def test_evaluation_and_export_are_of_the_learner(tmp_path):
    run = train("native:pong", tmp_path / "run", {"evaluation.interval": 256}, steps=512)
    assert run.result.scored_by == "every side in turn, against random"
    assert (tmp_path / "run" / "model.onnx").exists()
    action = run.policy.act(np.zeros(6, np.float32))
    assert int(action) in (0, 1, 2)


def test_evaluations_have_whole_teams_play(tmp_path):
    run = train("native:soccer", tmp_path / "run", {"environment.options": {"max_episode_steps": 20}}, steps=256)
    match = run.evaluate(episodes=8, seed=1, opponents=["random"]).matches["random"]
    assert len(match.returns) == 8  # four of each team, not two of each player
    # A goal pays both players of a team alike: the mean over the scored ones is −1, 0 or 1.
    assert set(match.returns) <= {-1.0, 0.0, 1.0}
    assert all(own == -other for own, other in zip(match.returns, match.best_others, strict=True))


def test_threads_that_collect_while_learning_play_too(tmp_path):
    run = train("native:pong", tmp_path / "run", {"trainer.threaded": True}, steps=1024)
    assert run.history["self_play/games"][-1] > 10


def test_a_policy_with_a_memory_plays_against_its_snapshots(tmp_path):
    memory = {"network.memory": {"kind": "gru", "size": 8, "sequence_length": 8}}
    run = train("native:pong", tmp_path / "run", memory, steps=512)
    assert np.isfinite(run.history["self_play/elo"]).all()


@pytest.mark.parametrize(
    ("env", "more", "message"),
    [
        ("native:CartPole", {}, "self_play needs two teams"),
        ("native:pong", {"algo": "mappo"}, "critics of mappo see all agents"),
        ("native:pong", {"learn_from": "arrow:somewhere"}, "leave out self_play"),
        ("native:pong", {"self_play.windw": 3}, "did you mean"),
        ("native:pong", {"self_play.play_against_latest_model_ratio": 2}, "less than or equal to 1"),
    ],
)
def test_what_makes_no_game_is_refused(env, more, message, tmp_path):
    with pytest.raises((ConfigError, RelayRLError), match=message):
        train(env, tmp_path / "run", more, steps=64)


def test_a_run_without_self_play_has_no_ladder(tmp_path):
    settings = {name: value for name, value in SMALL.items() if not name.startswith("self_play")}
    relayrl.train("native:pong", run_dir=tmp_path / "run", settings=settings, steps=64, progress=False)
    assert "is no run with self_play" in command("ladder", str(tmp_path / "run")).complaint


def test_a_resumed_run_keeps_its_self_play(tmp_path):
    train("native:pong", tmp_path / "run", steps=128)
    with pytest.raises(ConfigError, match=r"self_play.window \(3 → 4\)"):
        relayrl.train(run_dir=tmp_path / "run", resume=True, settings={"self_play.window": 4}, progress=False)
