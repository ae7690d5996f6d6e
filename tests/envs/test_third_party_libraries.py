"""Environments of other people's packages, trained as their users would; see `third_party` for which are installed."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from third_party import OPTIONAL, REQUIRED, absent, is_installed, needs

import relayrl
from relayrl.envs.conversions.text_tokens import NUM_TOKENS, NUM_WORDS, tokens
from relayrl.errors import ConfigError, EnvironmentFailedError
from relayrl.testing import check_environment


@pytest.mark.filterwarnings("default")
def test_the_required_packages_are_installed_and_the_absent_ones_are_named():
    warnings.warn(f"not installed, so not tried: {', '.join(absent()) or 'none'}", stacklevel=1)
    assert [package for module, package in REQUIRED.items() if not is_installed(module)] == []
    assert not set(REQUIRED) & set(OPTIONAL)


def train(env: Any, algo: str, folder: Path, steps: int = 256, **settings: Any) -> relayrl.Run:
    few = {
        "environment.num_envs": 2,
        "trainer.time_horizon": 32,
        "network.hidden_sizes": [16],
        "evaluation.episodes": 2,
    }
    passes = {"params.train_pi_iters": 1, "params.train_vf_iters": 1}
    own = {**few, **({} if algo in ("sac", "td3") else passes), "statistics.tensorboard": False}
    own |= {key.replace("__", "."): value for key, value in settings.items()}
    return relayrl.train(env, algo=algo, steps=steps, run_dir=folder, settings=own, progress=False)


QUIET = pytest.mark.filterwarnings("ignore")  # what these packages warn of is theirs


@QUIET
@pytest.mark.parametrize(
    ("env", "algo", "num_agents"),
    [
        pytest.param("Foraging-8x8-2p-1f-v3", "ippo", 2, marks=needs("lbforaging")),
        pytest.param("lbforaging:Foraging-8x8-3p-2f-coop-v3", "mappo", 3, marks=needs("lbforaging")),
        pytest.param("rware:rware-tiny-2ag-v2", "mappo", 2, marks=needs("rware")),
    ],
)
def test_tuples_of_agents_are_agents(tmp_path, env, algo, num_agents):
    envs = relayrl.make_env(env, num_envs=2)
    (group,) = envs.groups.values()
    assert group.agent_ids == tuple(f"agent_{i}" for i in range(num_agents))
    envs.reset(seed=0)
    step = envs.step({group.name: np.zeros((2, num_agents), np.int64)})
    assert step.groups[group.name].reward.shape == (2, num_agents)
    envs.close()
    run = train(env, algo, tmp_path / "run")
    assert run.result.num_env_steps == 256


@QUIET
@needs("lbforaging")
def test_foraging_keeps_the_contract():
    check_environment(
        lambda count: relayrl.make_env("lbforaging:Foraging-5x5-2p-1f-v3", num_envs=count)
    ).raise_if_failed()


class TwoParts(gymnasium.Env[Any, Any]):
    """One agent whose observation and action are pairs: it says of no agents."""

    observation_space = spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Discrete(2)))
    action_space = spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Discrete(2)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return (np.zeros(1, np.float32), 0), {}

    def step(self, action: Any) -> Any:
        return (np.zeros(1, np.float32), 0), float(action[1]), False, True, {}


def test_one_agent_with_tuples_stays_one():
    envs = relayrl.make_env(TwoParts, num_envs=1)
    assert [group.agent_ids for group in envs.groups.values()] == [("agent",)]
    envs.close()


CRC_32 = (0xB6689356, 0x7A67E768, 0xB4CA7514)  # of "go", "left", "right"


def test_texts_become_tokens_of_a_fixed_length():
    row = tokens("Go to the RED ball")
    assert row.shape == (NUM_WORDS,)
    np.testing.assert_array_equal(row, tokens("go, to the red ball!"))
    assert row[:5].min() > 0
    assert not row[5:].any()
    assert tokens("word " * 40).min() > 0
    assert max(tokens(" ".join(map(chr, range(97, 113))))) < NUM_TOKENS
    assert tokens("go left right")[:4].tolist() == [1 + number % 127 for number in CRC_32] + [0]


class Spoken(gymnasium.Env[Any, Any]):
    """The text says which action is right."""

    observation_space = spaces.Dict({"said": spaces.Text(20), "number": spaces.Box(0, 1, (1,))})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._right = int(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), float(action == self._right), True, False, {}

    def _seen(self) -> Any:
        return {"said": ("go left", "go right")[self._right], "number": np.zeros(1, np.float32)}


def test_what_is_said_is_learned_from(tmp_path):
    few = {"environment__num_envs": 8, "params__pi_lr": 1e-2, "params__train_pi_iters": 8, "trainer__time_horizon": 16}
    few |= {"params__target_kl": None, "evaluation__episodes": 0, "trainer__summary_freq": 128}
    train(Spoken, "ppo", tmp_path / "run", steps=1_280, **few)
    with open(tmp_path / "run" / "progress.csv", newline="") as file:
        returns = [float(row["episode/return_mean"]) for row in csv.DictReader(file)]
    assert max(returns) > 0.95  # later the normalised advantages are noise, and at this rate PPO may forget again


@QUIET
@needs("minigrid")
@pytest.mark.parametrize("workers", [0, 1])
def test_missions_of_minigrid_are_read(tmp_path, workers):
    run = train("minigrid:MiniGrid-Empty-5x5-v0", "ppo", tmp_path / "run", environment__workers=workers)
    assert run.policy.metadata.observation_space["mission"] == spaces.MultiDiscrete([NUM_TOKENS] * NUM_WORDS)


class TwoObjectives(gymnasium.Env[Any, Any]):
    """Rewards of two numbers: the action, and one minus it."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)
    reward_space = spaces.Box(0, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), np.array([action, 1 - action], np.float64), False, True, {}


def test_vector_rewards_need_weights_and_are_summed_by_them(tmp_path):
    name = f"{__name__}:TwoObjectives"
    with pytest.raises(ConfigError, match=r"rewards of 2 numbers; set environment.reward_weights to 2 weights"):
        train(name, "ppo", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"rewards of 2 numbers, environment.reward_weights has 3"):
        train(name, "ppo", tmp_path / "three", environment__reward_weights=[1, 2, 3])
    run = train(name, "ppo", tmp_path / "run", environment__reward_weights=[3.0, 1.0], evaluation__episodes=4)
    assert run.evaluate(episodes=4).mean_return in (1.0, 3.0)
    with pytest.raises(EnvironmentFailedError, match="leave reward_weights out"):
        train("CartPole-v0", "ppo", tmp_path / "plain", environment__reward_weights=[1.0], environment__workers=1)


@QUIET
@needs("mo_gymnasium")
def test_objectives_of_mo_gymnasium_are_weighed(tmp_path):
    name = "mo_gymnasium:deep-sea-treasure-v0"
    with pytest.raises(ConfigError, match=r"set environment.reward_weights"):
        train(name, "ppo", tmp_path / "none")
    assert np.isfinite(train(name, "ppo", tmp_path / "run", environment__reward_weights=[1, 0.1]).result.mean_return)


class _Timestep:
    """An object of a library that RelayRL does not know."""


def foreign(package: str) -> Any:
    return type("Environment", (_Timestep,), {"__module__": f"{package}.base"})()


@pytest.mark.parametrize(
    ("package", "adapter"),
    [
        ("dm_control", "DmControlCompatibilityV0"),
        ("bsuite", "BSuiteCompatibilityV0"),
        ("dm_env", "DmControlCompatibilityV0"),
        ("pyspiel", "OpenSpielCompatibilityV0"),
        ("gym", "GymV26CompatibilityV0"),
        ("meltingpot", "MeltingPotCompatibilityV0"),
    ],
)
def test_objects_of_other_libraries_are_refused_with_their_adapter(package, adapter):
    with pytest.raises(ConfigError, match=rf"return shimmy.{adapter}.* from your factory \(pip install shimmy\["):
        relayrl.make_env(lambda: foreign(package), num_envs=1)


def test_ids_of_compatibility_environments_say_what_they_need():
    with pytest.raises(ConfigError, match=r"shimmy's compatibility environments.*pip install shimmy\[meltingpot\]"):
        relayrl.make_env("meltingpot/nothing-v0")


@QUIET
@pytest.mark.parametrize(
    "env",
    [
        pytest.param("dm_control/cartpole-balance-v0", marks=[needs("dm_control"), needs("shimmy")]),
        pytest.param("bsuite/catch-v0", marks=[needs("bsuite"), needs("shimmy")]),
    ],
)
def test_shimmys_ids_are_trained_by_their_plain_name(tmp_path, env):
    assert np.isfinite(train(env, "ppo", tmp_path / "run").result.mean_return)


def tic_tac_toe() -> Any:
    import pyspiel
    from shimmy import OpenSpielCompatibilityV0

    return OpenSpielCompatibilityV0(env=pyspiel.load_game("tic_tac_toe"))


@QUIET
@needs("pyspiel")
@needs("shimmy")
def test_games_of_open_spiel_are_played_through_shimmy(tmp_path):
    assert train(tic_tac_toe, "ippo", tmp_path / "run").result.num_env_steps == 256


@QUIET
@needs("envpool")
def test_envpool_is_a_vector_environment(tmp_path):
    report = check_environment(lambda count: relayrl.make_env("envpool:CartPole-v1", num_envs=count))
    # A pool can only reset all of its environments at once.
    assert {each.name for each in report.failures} == {
        "partial_reset_shows_the_others_unchanged",
        "seeded_partial_reset_begins_as_a_full_one",
    }
    assert np.isfinite(train("envpool:CartPole-v1", "ppo", tmp_path / "run").result.mean_return)
    with pytest.raises(ConfigError, match="unknown EnvPool environment"):
        relayrl.make_env("envpool:CartPole-v999")


@pytest.mark.skipif(is_installed("envpool"), reason="envpool is installed")
def test_envpool_is_named_where_it_is_missing():
    with pytest.raises(ConfigError, match="pip install envpool"):
        relayrl.make_env("envpool:CartPole-v1")


@QUIET
@needs("gymnasium_robotics")
@pytest.mark.slow
def test_fetch_reaches_with_hindsight(tmp_path):
    few = {"params__hindsight_ratio": 4.0, "params__learning_starts": 200, "evaluation__episodes": 5}
    run = train("gymnasium_robotics:FetchReach-v4", "td3", tmp_path / "run", steps=600, **few)
    assert np.isfinite(run.result.mean_return)
