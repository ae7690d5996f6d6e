"""Every registered algorithm, interrupted and resumed, ends with the parameters of the run that was left alone."""

from pathlib import Path

import pytest

from relayrl.algorithms.registry import algorithms
from relayrl.engines.local.local_engine import LocalEngine, RunInterrupted, RunResult
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings

SMALL = {
    "environment.num_envs": 2,
    "environment.options": {"continuous_actions": True},
    "trainer.time_horizon": 10,
    "trainer.max_steps": 200,
    "network.hidden_sizes": (8,),
    "evaluation.episodes": 2,
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.learning_starts": 40,
    "params.batch_size": 8,
    "params.update_interval": 4,
    "params.train_iters": 1,
}


def settings_of(algo: str) -> RunSettings:
    fields = algorithms()[algo].params.model_fields
    flags = {k: v for k, v in SMALL.items() if not k.startswith("params.") or k.removeprefix("params.") in fields}
    return build_run_settings("native:simple_spread", None, flags | {"algo": algo}, [])


def run(settings: RunSettings, path: Path, *, interrupted_at: int | None = None) -> RunResult:
    directory = RunDirectory(path)
    resumes = directory.config.exists()
    if not resumes:
        directory.create(settings)
    engine = LocalEngine(settings, directory, tensorboard=False)
    if resumes:
        assert engine.resume()
    seen = [0]
    return engine.run(
        lambda progress: seen.__setitem__(0, progress.num_env_steps),
        lambda: interrupted_at is not None and seen[0] >= interrupted_at,
    )


@pytest.mark.parametrize("algo", sorted(set(algorithms()) - {"bc"}))  # which does not collect: test_bc_runs
def test_a_resumed_run_ends_as_if_it_had_not_stopped(algo, tmp_path):
    settings = settings_of(algo)
    whole = run(settings, tmp_path / "whole")
    with pytest.raises(RunInterrupted):
        run(settings, tmp_path / "parts", interrupted_at=100)
    resumed = run(settings, tmp_path / "parts")
    assert resumed.parameter_hash == whole.parameter_hash
    assert resumed.returns == whole.returns
    assert resumed.num_env_steps == whole.num_env_steps
