"""Seats: who acts for a lane, what of a rollout is the learner's, and whom the league draws."""

import numpy as np
import torch
from gymnasium import spaces

from relayrl.accelerator.live_actor import live_actor
from relayrl.engines.self_play.league import League
from relayrl.engines.self_play.own_rows import learner_rows
from relayrl.engines.self_play.seated_actor import SeatedActor
from relayrl.engines.self_play.seats import LEARNER
from relayrl.engines.self_play.snapshots import Snapshots
from relayrl.engines.settings.self_play_settings import SelfPlaySettings
from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.recurrent_policy import actor_critic
from relayrl.runtime.collector import Collector

SEEN, FEW = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)
GROUPS = {"player": AgentGroup("player", ("player_0", "player_1"), SEEN, FEW)}


class Constant(Actor):
    """Always does the same."""

    def __init__(self, action):
        self.head, self._action = likelihood_head(FEW), action

    def distribution(self, obs, mask=None):
        raise AssertionError("nobody asks")

    def decide(self, obs, mask, memory, rng):
        rows = len(obs)
        assert mask is None or len(mask) == rows
        return Decision(np.full(rows, self._action), np.full(rows, -float(self._action), np.float32))


def test_every_lane_is_played_by_whoever_has_its_seat():
    seats = np.array([LEARNER, 5, 5, LEARNER, 8])
    actor = SeatedActor(Constant(0), lambda: seats, lambda number: Constant({5: 1, 8: 2}[number]), num_lanes=5)
    decision = actor.decide(np.zeros((5, 2), np.float32), np.ones((5, 3), bool), None, None)
    assert decision.action.tolist() == [0, 1, 1, 0, 2]
    assert decision.logp.tolist() == [0.0, -1.0, -1.0, 0.0, -2.0]
    assert decision.memory is None


def test_what_a_lane_does_depends_on_nobody_elsewhere():
    learner, others = (policy_of(GROUPS["player"], seed) for seed in (0, 1))
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((8, 2)).astype(np.float32)
    seats = np.array([LEARNER, 3, 3, LEARNER, 4, 4, LEARNER, 3])
    elsewhere = np.array([LEARNER, 3, 3, LEARNER, LEARNER, 9, 9, 9])

    def drawn(players, first, last):
        """Actions of twenty rows of the lanes `first … last - 1`."""
        actor = SeatedActor(
            live_actor(learner), lambda: players[first:last], lambda _: live_actor(others), len(players), first
        )
        rng = np.random.default_rng(7)
        return np.stack([actor.decide(seen[first:last], None, None, rng).action for _ in range(20)])

    whole = drawn(seats, 0, 8)
    assert len(np.unique(whole)) == 3
    assert (drawn(elsewhere, 0, 8)[:, :4] == whole[:, :4]).all()
    for first, last in ((0, 1), (1, 5), (5, 8)):
        assert (drawn(seats, first, last) == whole[:, first:last]).all()
        assert (drawn(elsewhere, first, last)[:, : max(0, 4 - first)] == whole[:, first : min(4, last)]).all()


def rollout_of_turns():
    """Twelve steps of one game of turns after the other."""
    env = make_vector("relayrl.testing:TakingTurns", EnvSettings(num_envs=1))
    try:
        actors = {"player": live_actor(policy_of(env.groups["player"]))}
        return Collector(env, actors, num_steps=12, seed=0, rng=np.random.default_rng(0)).collect(3)["player"]
    finally:
        env.close()


def policy_of(group, seed=0):
    return actor_critic(
        group.observation_space,
        group.action_space,
        NetworkSettings(hidden_sizes=(4,)),
        torch.Generator().manual_seed(seed),
        None,
        None,
        None,
    )


def test_rows_of_others_look_like_those_of_agents_that_are_not_there():
    rollout = rollout_of_turns()
    seats = np.full((12, 2), LEARNER)
    seats[:, 1] = 4
    own = learner_rows(rollout, seats, seats[-1])
    assert own.valid[:, 0].tolist() == rollout.valid[:, 0].tolist()
    assert own.terminated[:, 0].tolist() == rollout.terminated[:, 0].tolist()
    assert own.reward[:, 0].tolist() == rollout.reward[:, 0].tolist()
    for column in (own.valid, own.terminated, own.truncated, own.reward):
        assert not column[:, 1].any()
    assert own.waits.tolist()[1]
    assert rollout.valid[:, 1].any()  # the original is as it was


def test_a_rollout_of_the_learner_alone_is_left_as_it_is():
    rollout = rollout_of_turns()
    seats = np.full((12, 2), LEARNER)
    assert learner_rows(rollout, seats, seats[-1]) is rollout


def league(num_envs=4, **settings):
    live = {"player": policy_of(GROUPS["player"])}
    found = League(
        SelfPlaySettings(**settings), GROUPS, num_envs, Snapshots(live, live_actor), np.random.default_rng(0)
    )
    found.seat({"player": Constant(0)})["player"].decide(np.zeros((2 * num_envs, 2), np.float32), None, None, None)
    return found, live


def seats_of(found):
    return np.asarray(found.state_dict()["seats"])


def end_all(found, returns):
    envs = np.arange(len(returns))
    found.end_games(envs, np.ones(len(envs), bool), {"player": np.array(returns)})


def test_the_learner_takes_every_place_in_turn():
    found, _ = league()
    first = (seats_of(found) == LEARNER).argmax(1)
    assert first.tolist() == [0, 1, 0, 1]
    end_all(found, [[1.0, -1.0]] * 4)
    assert (seats_of(found) == LEARNER).argmax(1).tolist() == [1, 0, 1, 0]


def test_who_leaves_the_window_plays_on_to_the_end_and_is_not_drawn_again():
    found, _ = league(save_steps=10, swap_steps=10, window=2, play_against_latest_model_ratio=0.0)
    for step in (10, 20, 30):
        found.advance(step, step)
    state = found.state_dict()
    assert state["window"] == [[2, 3]]
    assert set(state["drawn"]) <= {2, 3}
    assert 0 in seats_of(found)  # the game against the first snapshot goes on
    assert [one["number"] for one in state["snapshots"]["kept"]] == [0, 2, 3]
    end_all(found, [[1.0, -1.0]] * 4)
    found.advance(40, 40)
    assert 0 not in [one["number"] for one in found.state_dict()["snapshots"]["kept"]]
    assert found.state_dict()["ladder"][0][4] == 0  # nobody rates a game against one who has left


def test_games_against_the_newest_policies_rate_nobody():
    found, _ = league(play_against_latest_model_ratio=1.0)
    end_all(found, [[1.0, -1.0]] * 4)
    metrics = found.take_metrics()
    assert (metrics["self_play/elo"], metrics["self_play/elo_error"], metrics["self_play/games"]) == (1200.0, 0.0, 4.0)
    assert metrics["self_play/score_mean"] == 0.5  # it had either place twice, and the first one won


def test_a_draw_counts_half_and_a_failed_game_not_at_all():
    found, _ = league(play_against_latest_model_ratio=0.0)
    found.end_games(np.array([0, 1]), np.array([True, False]), {"player": np.array([[0.0, 0.0], [5.0, -5.0]])})
    metrics = found.take_metrics()
    assert (metrics["self_play/games"], metrics["self_play/score_mean"]) == (1.0, 0.5)
    assert metrics["self_play/elo"] == 1200.0


def test_snapshots_are_copies_that_do_not_learn():
    found, live = league(save_steps=10, play_against_latest_model_ratio=0.0)
    with torch.no_grad():
        for parameter in live["player"].parameters():
            parameter.add_(1.0)
    found.advance(10, 1)
    kept = found.state_dict()["snapshots"]["kept"]
    name = next(name for name in kept[0]["policies"]["player"] if name.endswith("weight"))
    before, after = (one["policies"]["player"][name] for one in kept[:2])
    assert torch.allclose(after, before + 1.0)


def test_a_league_goes_on_from_its_state():
    one, _ = league(save_steps=10, swap_steps=10)
    end_all(one, [[1.0, -1.0]] * 4)
    one.advance(10, 1)
    one.take_metrics()
    other, _ = league(save_steps=10, swap_steps=10)
    other.load_state_dict(one.state_dict())
    for each in (one, other):
        end_all(each, [[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [1.0, -1.0]])
        each.advance(40, 2)
    assert other.take_metrics() == one.take_metrics()
    left, right = one.state_dict(), other.state_dict()
    for key in ("ladder", "window", "drawn", "rng", "learners"):
        assert left[key] == right[key]
    assert (left["seats"] == right["seats"]).all()


def test_settings_default_to_those_of_ml_agents():
    settings = SelfPlaySettings(save_steps=500)
    assert (settings.team_change, settings.swap_steps, settings.window) == (2500, 2000, 10)
    assert (settings.play_against_latest_model_ratio, settings.initial_elo) == (0.5, 1200.0)
