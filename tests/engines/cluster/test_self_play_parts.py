"""Self-play with collectors that have some of the environments each: the local engine's games, ratings and parameters."""

import json

import pytest
from fleet_in_process import build

import relayrl
from cli_in_process import relayrl as command
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.errors import ConfigError
from relayrl.sinks.contract import open_source

SMALL = {
    "num_envs": 5,
    "time_horizon": 12,
    "summary_freq": 60,
    "checkpoint_interval": 120,
    "evaluation.episodes": 2,
    "network.hidden_sizes": [16],
    "tensorboard": False,
    "self_play.save_steps": 120,
    "self_play.swap_steps": 60,
    "self_play.window": 3,
}
ON_POLICY = {"train_pi_iters": 2, "train_vf_iters": 2}
REPLAY = {"learning_starts": 100, "batch_size": 16, "update_interval": 20, "train_iters": 2}
SHORT = {"environment.options": {"max_episode_steps": 15}}
TAG = {"environment.options": {"max_cycles": 8}, "self_play.team_change": 180}
CONTINUOUS_TAG = {**TAG, "environment.options": {"max_cycles": 8, "continuous_actions": True}}
STEPS = 600
CASES = {
    "symmetric": ("native:pong", "ppo", {**ON_POLICY, "network.normalize_observations": True}),
    "asymmetric": ("native:simple_tag", "ppo", {**ON_POLICY, **TAG}),
    "turns and masks": ("pettingzoo:classic.tictactoe_v3", "ppo", ON_POLICY),
    "teams": ("native:soccer", "poca", SHORT),
    "agents that die": ("relayrl.testing:DyingAgents", "ppo", {**ON_POLICY, "self_play.team_change": 180}),
    "memory": ("native:pong", "ppo", {**ON_POLICY, "network.memory.size": 8}),
    "replay, squashed": ("native:simple_tag", "sac", {**REPLAY, **CONTINUOUS_TAG}),
    "replay, noisy": ("native:simple_tag", "td3", {**REPLAY, **CONTINUOUS_TAG}),
}


@pytest.fixture(autouse=True)
def engine():
    relayrl.extend.register_engine("parts", build)
    yield
    unregister_plugin(PluginKind.ENGINE, "parts")


def train(path, env, algo, settings, *, workers=None, **arguments):
    placed = {} if workers is None else {"engine": "parts", "workers": workers}
    chosen = {**SMALL, **settings, **placed}
    arguments = {"steps": STEPS, **arguments}
    return relayrl.train(env, algo=algo, run_dir=path, settings=chosen, progress=False, **arguments)


def ladder(path):
    return json.loads(command("ladder", str(path), "--json").stdout)


def games(run):
    """Every row of the metrics of self-play."""
    return {name: [repr(each) for each in numbers] for name, numbers in run.history.items() if "self_play/" in name}


def recorded(url):
    """What every agent saw, did and got in every episode, and by which version of the policy; without ids, which are drawn."""
    found: dict = {}
    with open_source(url) as source:
        for t in sorted(source, key=lambda each: each.first_step):
            rows = zip(t.action.tolist(), t.reward.tolist(), t.policy_version.tolist(), strict=True)
            found.setdefault(t.env_id, {}).setdefault((t.agent_id, t.episode), []).extend(rows)
    return sorted(map(repr, found.values()))


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_collectors_plays_the_games_of_the_local_engine(case, tmp_path):
    env, algo, settings = CASES[case]
    whole = train(tmp_path / "whole", env, algo, {**settings, "record": f"arrow:{tmp_path / 'steps'}"})
    played = ladder(tmp_path / "whole")
    assert len(played["snapshots"]) > 4
    assert sum(row["games"] for row in played["snapshots"]) > 4
    for workers in (1, 2, 3):
        path, url = tmp_path / f"parts{workers}", f"arrow:{tmp_path / f'steps{workers}'}"
        parts = train(path, env, algo, {**settings, "record": url}, workers=workers)
        assert parts.result.parameter_hash == whole.result.parameter_hash, workers
        assert parts.result.returns == whole.result.returns
        assert ladder(path) == played
        assert games(parts) == games(whole)
        assert recorded(url) == recorded(f"arrow:{tmp_path / 'steps'}")


def interrupt_at(steps):
    def callback(run):
        if run.num_env_steps >= steps:
            raise KeyboardInterrupt

    return callback


SAVED = {name: CASES[name] for name in ("symmetric", "asymmetric", "replay, noisy")}
SAVED["turns"] = ("relayrl.testing:KuhnPoker", "ppo", ON_POLICY)


@pytest.mark.parametrize("case", SAVED)
def test_an_interrupted_run_plays_on_as_the_local_one_would(case, tmp_path):
    env, algo, settings = SAVED[case]
    whole = train(tmp_path / "whole", env, algo, settings)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", env, algo, settings, workers=3, callbacks=[interrupt_at(300)])
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False, trust=True)
    assert resumed.result.parameter_hash == whole.result.parameter_hash
    assert ladder(tmp_path / "run") == ladder(tmp_path / "whole")


def test_a_game_whose_state_cannot_be_saved_begins_anew_as_it_does_locally(tmp_path):
    env, algo, settings = CASES["turns and masks"]
    for path, workers in ((tmp_path / "whole", None), (tmp_path / "parts", 2)):
        with pytest.raises(KeyboardInterrupt):
            train(path, env, algo, settings, workers=workers, callbacks=[interrupt_at(300)])
    whole, parts = (
        relayrl.train(run_dir=tmp_path / name, resume=True, progress=False, trust=True) for name in ("whole", "parts")
    )
    assert parts.result.parameter_hash == whole.result.parameter_hash
    assert ladder(tmp_path / "parts") == ladder(tmp_path / "whole")


def test_games_go_on_with_another_number_of_collectors_and_locally(tmp_path):
    env, algo, settings = CASES["symmetric"]
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", env, algo, settings, workers=3, callbacks=[interrupt_at(180)])
    before = ladder(tmp_path / "run")["learners"][0]["games"]
    for number, changed in enumerate(({"workers": 2}, {"engine": "local", "workers": 0})):
        with pytest.raises(KeyboardInterrupt):
            relayrl.train(
                run_dir=tmp_path / "run",
                resume=True,
                settings=changed,
                progress=False,
                callbacks=[interrupt_at(300 + 120 * number)],
            )
        after = ladder(tmp_path / "run")["learners"][0]["games"]
        assert after > before
        before = after


def test_collectors_keep_only_players_that_may_still_play():
    settings = {**SMALL, "engine": "parts", "workers": 2, "self_play.window": 2}
    parts = relayrl.extend.make_run_parts("native:pong", algo="ppo", settings=settings)
    try:
        for _ in range(20):
            parts.trainer.receive(parts.collect(parts.trainer.policy_version))
            parts.trainer.begin()()
        newest = max(snapshot["number"] for snapshot in parts.league.state_dict()["snapshots"]["kept"])
        assert newest > 10
        for member in parts.fleet.members:
            assert 0 < len(member.players) < 8
            assert 0 not in member.players
    finally:
        parts.close()


@pytest.mark.parametrize(
    ("algo", "settings", "says"),
    [
        ("impala", {"cluster.asynchronous": True}, "rates games at one step of all environments"),
        ("sac", {"cluster.replay": "sharded"}, "shards keep all agents' steps"),
    ],
)
def test_what_games_elsewhere_cannot_have_is_refused(algo, settings, says, tmp_path):
    env = "native:pong" if algo == "impala" else "native:simple_tag"
    own = settings if algo == "impala" else {**settings, **CONTINUOUS_TAG}
    with pytest.raises(ConfigError, match=says):
        train(tmp_path / "run", env, algo, own, workers=2)
