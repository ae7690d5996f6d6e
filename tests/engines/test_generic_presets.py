"""Environments without a preset get settings for their kind of problem; what the user says goes over them."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from gymnasium import spaces

from relayrl.algorithms.registry import algorithms
from relayrl.engines.sessions import TrainRequest, open_session
from relayrl.engines.settings.generic_presets import ProblemKind, generic_preset, problem_kinds
from relayrl.engines.settings.run_settings import preset
from relayrl.envs.environment_contract import AgentGroup


def settled(env, **given):
    return open_session(TrainRequest(env=env, **given), create=False)


def kinds(env, space, *, has_memory=False):
    group = AgentGroup("agents", ("one",), space, spaces.Discrete(2))
    return [kind.value for kind in problem_kinds(env, {"agents": group}, has_memory=has_memory)]


def test_kinds_are_told_by_name_observation_and_memory():
    vector, image = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (84, 84, 3), np.uint8)
    assert kinds("Taxi-v4", vector) == ["vector"]
    assert kinds("mine:Camera", spaces.Dict({"eye": image, "pose": vector})) == ["vector", "image"]
    assert kinds("mine:Maze", vector, has_memory=True) == ["vector", "memory"]
    assert kinds("FrozenLake-v1", spaces.Discrete(16)) == ["vector", "discrete"]
    assert kinds("mine:Cards", spaces.Tuple([spaces.Discrete(9), spaces.MultiDiscrete([2, 3])])) == [
        "vector",
        "discrete",
    ]
    assert kinds("mine:Cue", spaces.Discrete(4), has_memory=True) == ["vector", "memory"]
    for particles in ("mpe2:simple_tag_v3", "native:simple_tag", "vmas:balance"):
        assert kinds(particles, vector) == ["vector", "particles"]


def test_an_environment_without_a_preset_does_not_take_eighty_passes():
    session = settled("FrozenLake-v1")
    assert session.settings.params.train_pi_iters == 10
    assert session.settings.params.target_kl is None
    assert any("no preset for FrozenLake-v1 with ppo" in note for note in session.notes)


def test_particles_are_discounted_by_095():
    assert settled("native:simple_tag", flags={"algo": "ippo"}).settings.params.gamma == 0.95
    assert settled("native:Acrobot").settings.params.gamma == 0.99


def test_a_preset_of_the_environment_is_taken_alone():
    assert preset("CartPole-v1", "ppo")
    session = settled("CartPole-v1")
    assert session.settings.params.num_minibatches == 2
    assert session.notes == []


def test_flags_and_files_go_over_it(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"params": {"gamma": 0.5}}))
    session = settled("FrozenLake-v1", config=file, flags={"environment.num_envs": 3}, assignments=["pi_lr=0.01"])
    assert session.settings.params.gamma == 0.5
    assert session.settings.environment.num_envs == 3
    assert session.settings.params.pi_lr == 0.01
    assert (
        session.settings.params.num_minibatches
        == generic_preset("ppo", [ProblemKind.VECTOR])["params"]["num_minibatches"]
    )


def test_a_file_of_mlagents_has_defaults_of_its_own(tmp_path):
    file = tmp_path / "walker.yaml"
    file.write_text(yaml.safe_dump({"behaviors": {"Walker": {"trainer_type": "ppo", "max_steps": 1000}}}))
    assert not any("generic" in note for note in settled("FrozenLake-v1", config=file).notes)


@pytest.mark.parametrize("algo", algorithms())
@pytest.mark.parametrize("env", ["native:Pendulum", "native:simple_push"])
def test_every_algorithm_has_one(algo, env):
    flags = {"algo": algo, "environment.options": {"continuous_actions": True} if "push" in env else {}}
    session = settled(env, flags=flags)
    assert any("generic settings" in note for note in session.notes)


def test_every_layer_is_a_kind_of_an_algorithm():
    folder = Path(__file__).parents[2] / "src" / "relayrl" / "engines" / "settings"
    shipped = yaml.safe_load((folder / "generic_presets.yaml").read_text())
    assert set(shipped) == set(algorithms())
    assert {kind for layers in shipped.values() for kind in layers} == {kind.value for kind in ProblemKind}


def test_a_run_that_ends_before_it_learns_is_warned_of():
    session = settled("Pendulum-v1", flags={"algo": "td3", "trainer.max_steps": 800})
    assert any("nothing is learned" in note for note in session.notes)
    assert not settled("Pendulum-v1", flags={"algo": "td3"}).notes


def test_an_algorithm_without_generic_settings_says_that_defaults_are_used(monkeypatch):
    monkeypatch.setattr("relayrl.engines.settings.generic_presets.generic_preset", lambda algo, kinds: {})
    assert settled("FrozenLake-v1").notes == ["no preset for FrozenLake-v1 with ppo: defaults are used"]
