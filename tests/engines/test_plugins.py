"""Plugins by entry point, from a package that lies on the path as an installed one does."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from relayrl import open_sink, open_source
from relayrl.config.plugin_registry import PluginKind, load_plugin, plugin_names
from relayrl.errors import ConfigError, UnknownNameError

MODULE = """
import numpy as np
from relayrl import PPOParams, open_sink, open_source
from relayrl.extend import AlgorithmPlugin, RewardSignal, SinkPlugin, StatisticsWriter, assemble
from relayrl.testing import CountingEnv


class Doubling(RewardSignal):
    def __init__(self, offset=0.0):
        self.offset, self.calls = offset, 0

    def evaluate(self, rollout):
        self.calls += 1
        return rollout.reward + self.offset

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class Lines(StatisticsWriter):
    def __init__(self, path):
        self.path = path / "lines.txt"

    def write(self, num_env_steps, row):
        with self.path.open("a") as file:
            file.write(f"{num_env_steps}\\n")


class CautiousParams(PPOParams):
    caution: float = 0.5


def assemble_cautious(settings, env):
    params = settings.params.model_copy(update={"pi_lr": settings.params.pi_lr * settings.params.caution})
    return assemble(settings.model_copy(update={"algo": "ppo", "params": params}), env)


cautious = AlgorithmPlugin(CautiousParams, "PPO with a smaller step", assemble_cautious)
not_a_plugin = 3


def make_linear(network):
    from torch import nn

    return lambda encoder, num_outputs, output_gain, generator: nn.Linear(encoder.num_features, num_outputs)


def arrow(url):
    return "arrow:" + url.partition(":")[2]


kept = SinkPlugin(lambda url, settings: open_sink(arrow(url), settings), lambda url: open_source(arrow(url)))


def counting(terminate_at=4):
    return CountingEnv(terminate_at=terminate_at)
"""
ENTRY_POINTS = """
[relayrl.environments]
counting = extra_parts:counting
[relayrl.algorithms]
cautious = extra_parts:cautious
wrong = extra_parts:not_a_plugin
missing = extra_parts:nothing
[relayrl.sinks]
kept = extra_parts:kept
broken = extra_parts:not_a_plugin
[relayrl.networks]
linear = extra_parts:make_linear
[relayrl.reward_signals]
doubling = extra_parts:Doubling
[relayrl.statistics_writers]
lines = extra_parts:Lines
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "extra_parts-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "extra_parts.py").write_text(textwrap.dedent(MODULE))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("extra_parts", None)


def test_plugins_are_found_and_unknown_ones_name_the_nearest(installed):
    assert plugin_names(PluginKind.REWARD_SIGNAL) == ["doubling"]
    with pytest.raises(UnknownNameError, match="unknown reward signal 'doublin'; did you mean 'doubling'"):
        load_plugin(PluginKind.REWARD_SIGNAL, "doublin")
    with pytest.raises(ConfigError, match=r"cannot be loaded from extra_parts:nothing"):
        load_plugin(PluginKind.ALGORITHM, "missing")


def test_a_plugin_of_the_wrong_kind_is_refused(installed):
    from relayrl.engines.settings.run_settings import build_run_settings

    with pytest.raises(ConfigError, match="must be an AlgorithmPlugin"):
        build_run_settings("CartPole-v1", None, {"algo": "wrong"}, [])


def test_a_run_of_plugins_alone(installed, tmp_path):
    settings = [
        *("caution=0.25", "num_envs=2", "time_horizon=8", "summary_freq=16", "train_pi_iters=1", "train_vf_iters=1"),
        *(
            "writers=[lines]",
            "reward_signals.doubling={strength: 0.5, options: {offset: 1.0}}",
            "evaluation.episodes=2",
        ),
    ]
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, "-m", "relayrl.cli.main", "train", "counting", "--algo", "cautious", "--steps", "64"]
    done = subprocess.run(
        [*command, *arguments, "--record", "kept:experience", "--run-dir", "run", "--json", "--quiet"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={"PYTHONPATH": os.pathsep.join([str(installed), *sys.path]), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["env"], result["algo"], result["num_env_steps"]) == ("counting", "cautious", 64)
    assert (tmp_path / "run" / "lines.txt").read_text().split() == ["16", "32", "48", "64"]
    with open_source("kept:" + str(tmp_path / "experience")) as source:
        assert source.count().num_steps == 64


def test_a_sink_of_the_wrong_kind_is_refused_and_an_unknown_one_names_the_nearest(installed):
    with pytest.raises(ConfigError, match="must be a SinkPlugin, not 3"):
        open_sink("broken:x")
    with pytest.raises(UnknownNameError, match="unknown kind of sink 'kep'; did you mean 'kept'"):
        open_source("kep:x")


def test_check_env_knows_the_environments_of_plugins(installed, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "relayrl.cli.main", "check-env", "counting"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        env={"PYTHONPATH": os.pathsep.join([str(installed), *sys.path]), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr


def test_a_signal_is_added_to_rewards_with_its_strength_and_keeps_its_state(installed):
    from relayrl.engines.local.run_parts import build_parts
    from relayrl.engines.settings.run_settings import build_run_settings

    flags = {
        "environment.num_envs": 2,
        "trainer.time_horizon": 8,
        "reward_signals": {"doubling": {"strength": 0.5, "options": {"offset": 1.0}}},
    }
    parts = build_parts(build_run_settings("counting", None, flags, []))
    rollouts = parts.collector.collect(0)
    before = rollouts["agent"].reward.copy()
    parts.signals.add_to(rollouts)
    assert (rollouts["agent"].reward == before + 0.5 * (before + 1.0)).all()
    assert parts.signals.state_dict() == {"doubling": {"calls": 1}}
    parts.signals.load_state_dict({"doubling": {"calls": 5}})
    assert parts.signals.state_dict() == {"doubling": {"calls": 5}}
    parts.env.close()


def test_a_network_plugin_makes_the_policys_networks(installed):
    from torch import nn

    from relayrl.engines.local.run_parts import build_parts
    from relayrl.engines.settings.run_settings import build_run_settings

    parts = build_parts(build_run_settings("CartPole-v1", None, {"network.kernel": "linear"}, []))
    assert isinstance(parts.policies["agent"].actor, nn.Linear)
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        build_parts(build_run_settings("CartPole-v1", None, {"network.kernel": "linaer"}, []))
