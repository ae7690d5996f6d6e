"""Games of turns, recorded in short blocks: each game's returns and ends are those that the environment gave.

The loser's reward and end arrive on the winner's move, which may be the first row of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from turn_games import games_in, require_whole_games

from cli_in_process import relayrl
from relayrl import AgentBuilder
from relayrl.engines.local import run_recorder
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.local.run_parts import build_parts
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import RunInterrupted
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.sinks.contract import open_source

Place = Callable[[str], str]
TICTACTOE, CONNECT_FOUR, STANDOFF = (
    "pettingzoo:classic.tictactoe_v3",
    "pettingzoo:classic.connect_four_v3",
    "turn_games:Standoff",
)
SMALL = {
    "environment.num_envs": 2,
    "network.hidden_sizes": [8],
    "statistics.tensorboard": False,
    "evaluation.episodes": 0,
    "params.num_minibatches": 1,
    "params.train_pi_iters": 1,
    "params.train_vf_iters": 1,
}


@pytest.fixture(autouse=True)
def _short_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is written by itself."""
    monkeypatch.setattr(run_recorder, "RECORDED_STEPS", 1)


def settings_of(env: str, horizon: int, num_steps: int, **more: Any) -> RunSettings:
    given = SMALL | {"trainer.time_horizon": horizon, "trainer.max_steps": num_steps} | more
    return build_run_settings(env, None, {"algo": "ppo"}, list(given.items()))


def num_actions(url: str) -> int:
    with open_source(url) as source:
        return source.count().num_steps


@pytest.mark.parametrize("horizon", [1, 3, 8])
@pytest.mark.parametrize(("env", "fewest"), [(TICTACTOE, 15), (CONNECT_FOUR, 4)])
def test_train_records_whole_games(env: str, fewest: int, horizon: int, place: Place, tmp_path: Path) -> None:
    url = place("arrow")
    given = SMALL | {"trainer.time_horizon": horizon}
    sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}".lower())]
    command = ("train", env, "--algo", "ppo", "--steps", "384", "--run-dir", str(tmp_path / "run"), "--record", url)
    done = relayrl(*command, "--quiet", *sets)
    assert done.returncode == 0, done.stderr
    assert require_whole_games(url, 2) >= fewest
    assert num_actions(url) == 384  # one player acts on each step


@pytest.mark.parametrize("steps", [1, 5, 64])
@pytest.mark.parametrize(("env", "num_agents"), [(TICTACTOE, 2), (STANDOFF, 3)])
def test_run_env_records_whole_games(env: str, num_agents: int, steps: int, place: Place) -> None:
    """Also over several calls, whatever their length is; what waits at the end is recorded when the agent shuts down."""
    parts, url = build_parts(settings_of(env, 8, 64)), place("sqlite")
    try:
        with AgentBuilder().actor_count(0).sink(url).build() as agent:
            actors = {name: agent.new_actor(model=own, group=name) for name, own in parts.policies.items()}
            agent.set_env(actors, env, 2, seed=5)
            for _ in range(64 // steps):
                agent.run_env(next(iter(actors.values())), steps)
    finally:
        parts.close()
    assert num_actions(url) == 64 // steps * steps * 2
    assert require_whole_games(url, num_agents) >= 8


@pytest.mark.parametrize("ends_by", ["removal", "other environments"])
def test_environments_that_are_closed_leave_nothing_behind(ends_by: str, place: Place) -> None:
    parts, url = build_parts(settings_of(STANDOFF, 8, 64)), place("sqlite")
    try:
        with AgentBuilder().actor_count(0).sink(url).build() as agent:
            actor = agent.new_actor(model=parts.policies["player"], group="player")
            agent.set_env(actor, STANDOFF, 2, seed=5)
            agent.run_env(actor, 7)
            assert agent.flush()
            assert num_actions(url) < 14  # those who wait have an action of which it is not known yet what comes
            if ends_by == "removal":
                assert agent.remove_actor(actor)
            else:
                agent.set_env(actor, STANDOFF, 2, seed=6)
                assert agent.flush()
            assert num_actions(url) == 14
    finally:
        parts.close()


def train(settings: RunSettings, path: Path, *, stop_at: int | None = None) -> None:
    directory = RunDirectory(path)
    resumes = directory.config.exists()
    if not resumes:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    if resumes:
        assert engine.resume()
    reached = [0]
    is_over = (lambda: False) if stop_at is None else (lambda: reached[-1] >= stop_at)
    engine.run(lambda progress: reached.append(progress.num_env_steps), is_over)


@pytest.mark.parametrize("kind", ["arrow", "sqlite"])
@pytest.mark.parametrize(("env", "num_agents"), [(STANDOFF, 3), (TICTACTOE, 2)])
def test_a_run_that_was_stopped_has_everything_and_goes_on(
    kind: str, env: str, num_agents: int, place: Place, tmp_path: Path
) -> None:
    """Tic-tac-toe cannot be saved: its games are given up when the run stops, and new ones begin."""
    url = place(kind)
    settings = settings_of(env, 3, 240, record=url)
    for stop_at in (6, 66, 126):
        with pytest.raises(RunInterrupted):
            train(settings, tmp_path / "run", stop_at=stop_at)
        assert num_actions(url) == stop_at
    train(settings, tmp_path / "run")
    assert num_actions(url) == 240
    if env == STANDOFF:
        assert require_whole_games(url, num_agents) >= 20
    train(settings_of(env, 3, 300, record=url), tmp_path / "run")  # a run that was over may go on, too
    assert num_actions(url) == 300
    if env == STANDOFF:
        assert require_whole_games(url, num_agents) >= 25
    else:
        ended = [game for game in games_in(url).values() if all(parts[-1].terminated for parts in game.values())]
        assert len(ended) >= 20
        for game in ended:
            assert sum(part.episode_return for parts in game.values() for part in parts) == 0.0
