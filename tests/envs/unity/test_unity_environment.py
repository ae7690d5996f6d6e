"""Scenes of the fake simulator through `make_env`: what agents see, do and get, row by row."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from scenes import Scenes, actions, flags, scenes

from cli_in_process import relayrl
from relayrl.config.settings import parse_settings
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.unity.side_channels import EngineSettings
from relayrl.envs.unity.unity_settings import UnitySettings
from relayrl.envs.unity.unity_simulator import UnitySimulator
from relayrl.errors import ConfigError, EnvError, PartialResetError, UnknownNameError

__all__ = ["scenes"]


def test_every_agent_without_a_group_is_an_environment(scenes: Scenes) -> None:
    env = scenes.make("walk", "--agents", 3, num_envs=2)
    assert env.num_envs == 6
    assert {name: group.agent_ids for name, group in env.groups.items()} == {"Walk": ("Walk",)}
    view = env.reset().groups["Walk"]
    assert view.active.all()
    assert (view.obs[..., 1] == 1.0).all()
    for _ in range(6):
        before = view.obs.copy()
        step = env.step(actions(env, lambda _: 2))
        view = step.groups["Walk"]
        arrived = before[:, 0, 0] > 0.8
        assert (step.episode_over == arrived).all()
        assert (view.terminated[:, 0] == arrived).all()
        assert not view.truncated.any()
        assert np.allclose(view.reward[:, 0], np.where(arrived, 1.0, -0.02))
        assert np.allclose(view.obs[~arrived, 0, 0], before[~arrived, 0, 0] + 1 / 6, atol=1e-6)
        if arrived.any():
            assert view.final is not None
            assert view.final.env.tolist() == np.flatnonzero(arrived).tolist()
            assert (view.final.obs[:, 0] == 1.0).all()
        assert view.action_mask is not None
        assert (view.action_mask[:, 0, 0] == (view.obs[:, 0, 0] > 0)).all()


def test_a_reached_step_limit_truncates(scenes: Scenes) -> None:
    env = scenes.make("walk", "--agents", 2)
    env.reset()
    for _ in range(19):
        step = env.step(actions(env, lambda _: 1))
        assert not step.episode_over.any()
    group = env.step(actions(env, lambda _: 1)).groups["Walk"]
    assert group.truncated.all()
    assert not group.terminated.any()
    assert group.final is not None
    assert group.final.action_mask is not None


def test_behaviours_decide_at_different_times(scenes: Scenes) -> None:
    env = scenes.make("two")
    assert env.num_envs == 2
    view = env.reset().groups
    acted: dict[str, list[bool]] = {"Runner": [], "Aimer": []}
    returns = {"Runner": 0.0, "Aimer": 0.0}
    for t in range(12):
        for name, own in acted.items():
            own.append(bool(view[name].active[0, 0]))
        step = env.step(actions(env, lambda name: 1 if name == "Runner" else 0.5))
        view = step.groups
        for name in returns:
            returns[name] += float(step.groups[name].reward[0, 0])
        assert step.episode_over.tolist() == [t % 6 == 5] * 2
    assert acted == {"Runner": [True] * 12, "Aimer": [True, False, False] * 4}
    assert returns == {"Runner": 12.0, "Aimer": 12.0}


def test_two_teams_of_a_behaviour_meet_in_areas_and_share_a_policy(scenes: Scenes) -> None:
    env = scenes.make("duel")
    ids = ("Duel?team=0_0", "Duel?team=0_1", "Duel?team=1_0", "Duel?team=1_1")
    assert {name: group.agent_ids for name, group in env.groups.items()} == {"Duel": ids}
    assert env.num_envs == 2
    env.reset()
    for t in range(3):
        step = env.step({"Duel": np.array([[1, 1, 0, 0], [0, 0, 1, 0]])})
        assert step.groups["Duel"].reward.tolist() == [[2.0, 2.0, -2.0, -2.0], [-1.0, -1.0, 1.0, 1.0]]
        assert step.episode_over.tolist() == [t == 2] * 2


def test_rewards_and_ends_come_while_agents_have_not_asked(scenes: Scenes) -> None:
    env = scenes.make("stagger", "--agents", 2)
    view = env.reset().groups["Walk"]
    ends = 0
    for t in range(24):
        assert view.active[:, 0].tolist() == [t % 2 == 0, t % 2 == 1]
        acted = view.active.copy()
        step = env.step(actions(env, lambda _: 2))
        view = step.groups["Walk"]
        assert not (view.reward[acted]).any()
        assert (view.terminated[:, 0] == step.episode_over).all()
        ends += int(step.episode_over.sum())
    assert ends >= 4


def test_sensors_and_hybrid_actions(scenes: Scenes) -> None:
    env = scenes.make("sensors")
    (view,) = env.reset().groups.values()
    for t in range(5):
        seen = {key: leaf[0, 0] for key, leaf in view.obs.items()}
        assert seen["vector"].tolist() == [t, -t]
        assert (seen["stack"][0] == 10 * t).all()
        assert (seen["stack"][1] == 10 * t + 1).all()
        assert seen["colour"][:, 2, 3].tolist() == [t, 100, 200]
        assert seen["colour"].sum() == t + 300
        assert seen["grid"].ravel().tolist() == [n + t for n in range(8)]
        assert seen["buffer_present"].tolist() == [1] * min(t, 3) + [0] * (3 - min(t, 3))
        assert seen["buffer"][: min(t, 3)].tolist() == [[1.0 + t, 2.0]] * min(t, 3)
        assert view.action_mask is not None
        assert view.action_mask[0, 0].tolist() == [False, True, True, t % 2 == 1, True]
        taken = {"continuous": np.array([0.25, 0.0]), "discrete": np.array([2, 1])}
        step = env.step(actions(env, lambda _, own=taken: own))
        view = step.groups["Sensors"]
        assert view.reward[0, 0] == 46.0
    assert step.episode_over.all()
    assert view.final is not None
    assert view.final.obs["vector"].tolist() == [[5.0, -5.0]]


def test_members_of_a_group_die_while_it_goes_on_and_share_its_reward(scenes: Scenes) -> None:
    env = scenes.make("team", "--agents", 2)
    assert env.num_envs == 2
    view = env.reset().groups["Team"]
    chosen = view.obs[..., 0] == 1.0
    assert chosen.sum(1).tolist() == [1, 1]
    step = env.step({"Team": chosen.astype(np.int64)})
    assert (step.groups["Team"].terminated == chosen).all()
    assert (step.groups["Team"].active == ~chosen).all()
    assert not step.episode_over.any()
    env.step({"Team": np.zeros((2, 3), np.int64)})
    step = env.step({"Team": np.zeros((2, 3), np.int64)})
    assert (step.groups["Team"].reward == np.where(chosen, 0.0, 1.0)).all()
    assert step.episode_over.all()
    assert step.groups["Team"].active.all()


def test_agents_appear_in_the_middle_of_an_episode(scenes: Scenes) -> None:
    env = scenes.make("spawn")
    view = env.reset().groups
    workers, sums = [], np.zeros(2)
    for _ in range(8):
        workers.append(view["Worker"].active[0].tolist())
        step = env.step(actions(env, lambda _: 0))
        view = step.groups
        sums += view["Worker"].reward[0]
    assert workers == [[False, False]] * 2 + [[True, False]] * 2 + [[True, True]] + [[False, True]] * 2 + [
        [False, False]
    ]
    assert sums.tolist() == [1.5, 1.5]
    assert step.episode_over.all()


def test_an_agent_that_returns_early_cuts_the_episode_of_the_others(scenes: Scenes) -> None:
    """Four walkers taken for one environment: whoever arrives comes back at once."""
    env = scenes.make("walk", "--agents", 4, areas=1)
    assert env.groups["Walk"].agent_ids == ("Walk_0", "Walk_1", "Walk_2", "Walk_3")
    view = env.reset().groups["Walk"]
    for _ in range(6):
        place = np.rint(view.obs[..., 0] * 6)
        step = env.step({"Walk": np.where(place == place.max(), 2, 1)})
        view = step.groups["Walk"]
        if step.episode_over[0]:
            break
    assert (view.terminated[0] ^ view.truncated[0]).all()
    assert view.terminated[0].any()
    assert view.truncated[0].any()
    assert view.active.all()
    assert view.final is not None
    assert (view.final.obs[view.truncated[0], 0] * 6).round().max() < 6


def test_scenes_without_room_say_so(scenes: Scenes) -> None:
    env = scenes.make("spawn", agents_per_area={"Worker": 4})
    assert env.groups["Worker"].num_agents == 4
    with pytest.raises(
        ConfigError, match=r"agents_per_area names \['Drone'\]; the behaviours are \['Queen', 'Worker'\]"
    ):
        scenes.make("spawn", agents_per_area={"Drone": 4})


def test_the_simulator_gets_seed_areas_engine_and_parameters(scenes: Scenes) -> None:
    env = scenes.make(
        "walk", seed=11, num_areas=5, parameters={"goal": 3.5}, engine={"time_scale": 8, "quality_level": None}
    )
    env.reset()
    env.close()
    log = scenes.log().splitlines()
    assert "seed 11 areas 5" in log
    assert "parameter goal 0 3.5" in log
    assert "engine 0200000000000041" in log
    assert not [line for line in log if line.startswith("engine 01")]
    assert log[-1] == "told to quit"


def test_the_same_seed_gives_the_same_scene(scenes: Scenes) -> None:
    starts = []
    for seed in (3, 3, 4):
        env = scenes.make("walk", "--agents", 8, seed=seed)
        starts.append(env.reset().groups["Walk"].obs.tolist())
        env.close()
    assert starts[0] == starts[1] != starts[2]


def test_statistics_are_given_and_unknown_channels_skipped_with_one_line(
    scenes: Scenes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="relayrl.envs.unity")
    env = scenes.make("walk", "--agents", 2, parameters={"goal": 2.0}, warm_up=0)
    env.reset()
    env.step(actions(env, lambda _: 2))
    recorded = {one.name: (one.number, one.combination.name) for one in env.step(actions(env, lambda _: 2)).recorded}
    assert recorded["Walk/Steps"] == (1.0, "SUM")
    assert recorded["Walk/goal"] == (2.0, "MOST_RECENT")
    assert recorded["Walk/Arrived"][1] == "AVERAGE"
    assert [record.getMessage() for record in caplog.records].count(
        "side channel skipped: RelayRL does not know it"
    ) == 1


def test_only_all_areas_can_be_reset(scenes: Scenes) -> None:
    env = scenes.make("walk")
    env.reset()
    with pytest.raises(PartialResetError, match="reset all environments"):
        env.reset(env_ids=env.env_ids[:1])
    env.reset(env_ids=env.env_ids)


def test_a_reset_after_an_interrupted_step_is_a_reset(scenes: Scenes, monkeypatch: pytest.MonkeyPatch) -> None:
    env = scenes.make("walk", "--agents", 2)
    env.reset()

    def interrupted(simulator: UnitySimulator) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(UnitySimulator, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(actions(env, lambda _: 2))
    with pytest.raises(EnvError, match="after an interrupted step"):
        env.step(actions(env, lambda _: 2))
    before = env.reset().groups["Walk"].obs[:, 0, 0].copy()
    after = env.step(actions(env, lambda _: 1)).groups["Walk"].obs[:, 0, 0]
    assert (before == after).all()  # they stand where the reset has put them


def test_options_are_checked(scenes: Scenes) -> None:
    with pytest.raises(UnknownNameError, match="base_port"):
        scenes.make("walk", base_prot=5005)
    with pytest.raises(ConfigError, match="width and height go together"):
        scenes.make("walk", engine={"width": None})


@pytest.mark.slow
def test_scenes_keep_the_contract(scenes: Scenes) -> None:
    done = relayrl("check-env", scenes.name, *flags(scenes, "team"))
    assert "can be trained on" in done.stdout, done.stdout


def test_every_option_is_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "unity.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE))
    assert documented == set(UnitySettings.model_fields)
    assert all(f"`{name}`" in page for name in EngineSettings.model_fields)


def test_keys_are_dropped_and_observations_flattened(scenes: Scenes) -> None:
    kept = {"ignore_keys": ["stack", "colour", "grid"], "flatten": True}
    env = make_vector(scenes.name, parse_settings(EnvSettings, {"options": scenes.options("sensors"), **kept}))
    try:
        assert env.groups["Sensors"].observation_space.shape == (6 + 3 + 2,)
        assert env.reset().groups["Sensors"].obs.shape == (1, 1, 11)
    finally:
        env.close()
