"""Whole runs in this process: every kind of environment, repeatability, resuming, learning."""

import json
from pathlib import Path

import pytest

from relayrl.engines.local.local_engine import LocalEngine, RunResult
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.models.exports.exported import ExportedActor

QUICK = {
    "trainer.time_horizon": 16,
    "trainer.max_steps": 256,
    "trainer.summary_freq": 64,
    "environment.num_envs": 4,
    "network.hidden_sizes": (16,),
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.num_minibatches": 2,
    "evaluation.episodes": 2,
}


def settings_for(env: str, **flags) -> RunSettings:
    return build_run_settings(env, None, QUICK | {key.replace("__", "."): v for key, v in flags.items()}, [])


def run(settings: RunSettings, path: Path, *, tensorboard: bool = True, resume: bool = False) -> RunResult:
    directory = RunDirectory(path)
    if not resume:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=tensorboard)
    if resume:
        assert engine.resume()
    return engine.run(lambda _: None)


ENVIRONMENTS = [
    "CartPole-v1",
    "Pendulum-v1",
    "native:CartPole",
    "native:simple_tag",
    "mpe2:simple_speaker_listener_v4",
    "pettingzoo:classic.connect_four_v3",
    "vmas:simple_spread",
    "relayrl.testing.toy_environments:NestedSpaces",
    "relayrl.testing.toy_environments:DyingAgents",
    "relayrl.testing.toy_environments:TakingTurns",
    "relayrl.testing.toy_environments:MaskedBandit",
    "relayrl.testing.toy_environments:TorchCounting",
]


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_kind_of_environment_trains_exports_and_repeats(env, tmp_path):
    first = run(settings_for(env), tmp_path / "a")
    second = run(settings_for(env), tmp_path / "b", tensorboard=False)
    assert first.parameter_hash == second.parameter_hash
    assert first.returns == second.returns
    assert first.num_env_steps == 256
    models = RunDirectory(tmp_path / "a").models()
    groups = {ExportedActor(model).metadata.group for model in models}
    assert len(groups) == len(models) == len(first.parameter_hash) // 64
    untrained = run(settings_for(env, params__pi_lr=1e-30, params__vf_lr=1e-30), tmp_path / "c")
    assert untrained.parameter_hash != first.parameter_hash


def test_worker_processes_give_the_same_parameters(tmp_path):
    here = run(settings_for("Pendulum-v1"), tmp_path / "a")
    there = run(settings_for("Pendulum-v1", environment__workers=2), tmp_path / "b")
    assert here.parameter_hash == there.parameter_hash


def test_a_seed_changes_everything(tmp_path):
    results = [run(settings_for("CartPole-v1", seed=seed), tmp_path / str(seed)) for seed in (1, 2)]
    assert results[0].parameter_hash != results[1].parameter_hash
    assert results[0].returns != results[1].returns


def test_resuming_goes_on_counting_and_learning(tmp_path):
    first = run(settings_for("CartPole-v1"), tmp_path / "a")
    longer = settings_for("CartPole-v1", trainer__max_steps=512)
    resumed = run(longer, tmp_path / "a", resume=True)
    assert resumed.num_env_steps == 512
    assert resumed.parameter_hash != first.parameter_hash
    rows = (tmp_path / "a" / "progress.csv").read_text().splitlines()
    steps = [int(row.split(",")[0]) for row in rows[1:]]
    assert steps == sorted(steps)
    assert steps[-1] == 512


def test_the_newest_checkpoints_are_kept(tmp_path):
    settings = settings_for("CartPole-v1", trainer__checkpoint_interval=64, trainer__keep_checkpoints=2)
    run(settings, tmp_path / "a")
    names = sorted(path.name for path in (tmp_path / "a" / "checkpoints").iterdir())
    assert names == ["step_000000000192.ckpt", "step_000000000256.ckpt"]


def test_result_is_written_as_json(tmp_path):
    result = run(settings_for("CartPole-v1"), tmp_path / "a")
    written = json.loads((tmp_path / "a" / "result.json").read_text())
    assert written["parameter_hash"] == result.parameter_hash


CARTPOLE = {
    "trainer.max_steps": 20_480,
    "trainer.time_horizon": 128,
    "environment.num_envs": 8,
    "evaluation.episodes": 20,
}


def cartpole_return(tmp_path: Path, **params: float) -> float:
    flags = CARTPOLE | {f"params.{name}": value for name, value in params.items()}
    return run(build_run_settings("CartPole-v1", None, flags, []), tmp_path / "run").mean_return


CARTPOLE_THRESHOLD = 300.0


@pytest.mark.slow
def test_ppo_learns_cartpole(tmp_path):
    assert cartpole_return(tmp_path) >= CARTPOLE_THRESHOLD


@pytest.mark.slow
def test_ppo_without_policy_steps_misses_that(tmp_path):
    assert cartpole_return(tmp_path, pi_lr=1e-12) < CARTPOLE_THRESHOLD


def test_a_policy_that_only_its_mask_can_guide_never_errs(tmp_path):
    # One arm of four is allowed on each of eight steps, and only the mask tells which: 8 is a perfect episode.
    result = run(settings_for("relayrl.testing.toy_environments:MaskedBandit", evaluation__episodes=20), tmp_path / "a")
    assert result.returns == (8.0,) * 20
    assert result.train_return == 8.0
