"""The Python interface: train, look, evaluate, export, resume."""

import math
import subprocess
import sys

import numpy as np
import pytest

import relayrl
from relayrl.errors import ConfigError
from relayrl.models.exports.exported import ExportedActor
from relayrl.testing.toy_environments import CountingEnv

QUICK = {"time_horizon": 16, "summary_freq": 64, "hidden_sizes": [8], "train_pi_iters": 2, "train_vf_iters": 2}
WITH_EVALUATION = QUICK | {"evaluation.interval": 64, "evaluation.episodes": 2}


def train(path, **options):
    given = {"steps": 128, "num_envs": 2, "settings": WITH_EVALUATION, "progress": False} | options
    return relayrl.train("native:CartPole", run_dir=path, **given)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("api") / "run", algo="ppo", seed=3)


def test_a_run_knows_how_it_ended(run):
    assert (run.result.num_env_steps, run.result.seed, run.result.algo) == (128, 3, "ppo")
    assert run.settings.network.hidden_sizes == (8,)
    assert len(run.result.returns) == 2


def test_history_is_columns_of_equal_length(run):
    history = run.history
    assert history["num_env_steps"] == [32, 64, 128]
    assert {len(column) for column in history.values()} == {3}
    assert [math.isfinite(number) for number in history["evaluation/return_mean"]] == [False, True, True]


def test_the_policy_acts_without_torch(run):
    actions = run.policy.act_greedily(np.zeros((5, 4), np.float32))
    assert actions.shape == (5,)
    assert set(run.policies) == {"agent"}


def test_evaluations_repeat_and_depend_on_their_seed(run):
    assert run.evaluate(episodes=3).returns == run.evaluate(episodes=3).returns
    drawn = [run.evaluate(episodes=3, seed=seed, stochastic=True).returns for seed in (1, 2)]
    assert drawn[0] != drawn[1]


def test_a_policy_is_exported_to_where_one_likes(run, tmp_path):
    assert run.export(tmp_path / "policy.pt", file_format="torchscript") == [tmp_path / "policy.pt"]
    assert (tmp_path / "policy.pt").stat().st_size > 1000
    with pytest.raises(ConfigError, match="onnx"):
        run.export(file_format="onx")


def test_the_best_policy_is_exported_where_evaluations_found_one(run, tmp_path):
    (path,) = run.export(tmp_path / "best.onnx", best=True)
    assert ExportedActor(path).act_greedily(np.zeros((2, 4), np.float32)).shape == (2,)
    unevaluated = train(tmp_path / "run", settings=QUICK | {"evaluation.episodes": 0})
    with pytest.raises(ConfigError, match=r"evaluation\.interval"):
        unevaluated.export(best=True)


def test_a_run_is_loaded_and_continued(run, tmp_path):
    whole = train(tmp_path / "whole", seed=3, steps=256)
    first = train(tmp_path / "parts", seed=3)
    assert first.result.parameter_hash == run.result.parameter_hash
    more = relayrl.train(run_dir=first.path, steps=256, resume=True, progress=False)
    assert more.result.parameter_hash == whole.result.parameter_hash
    assert relayrl.load_run(first.path).result == more.result


def test_a_class_of_ones_own_is_an_environment(tmp_path):
    own = {"settings": QUICK | {"evaluation.episodes": 0}, "steps": 32, "num_envs": 2, "progress": False}
    run = relayrl.train(CountingEnv, run_dir=tmp_path / "run", **own)
    assert run.result.env == "relayrl.testing.toy_environments:CountingEnv"


def test_runs_of_versions_with_other_names_of_modules_go_on(tmp_path):
    own = {
        "settings": QUICK | {"evaluation.episodes": 1},
        "num_envs": 2,
        "progress": False,
        "run_dir": tmp_path / "run",
    }
    run = relayrl.train(CountingEnv, steps=32, **own)
    config = run.path / "config.yaml"
    saved, now = config.read_text(), "relayrl.testing.toy_environments:CountingEnv"
    assert now in saved
    config.write_text(saved.replace(now, "relayrl.testing.worlds:CountingWorld"))
    more = relayrl.train(CountingEnv, steps=64, resume=True, **own)
    assert more.result.num_env_steps == 64
    for name in (CountingEnv, "relayrl.testing.worlds:CountingWorld"):
        assert len(relayrl.load_run(run.path, env=name).evaluate(episodes=1).returns) == 1


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        relayrl.load_run(tmp_path)


def test_importing_the_package_loads_nothing_heavy():
    heavy = "{'torch', 'numpy', 'pydantic', 'gymnasium'}"
    code = f"import sys, relayrl; assert not {heavy} & set(sys.modules); assert callable(relayrl.train)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = relayrl.trane
