"""Sweeps over real runs, in the test's own process: what they learn is what `relayrl.train` learns."""

import hashlib
import math
from pathlib import Path

import pytest
from fake_trials import SHORT, InThisProcess

import relayrl

BASE = {"env": "CartPole-v1", "settings": SHORT, "seeds": [1]}


def trained(run_dir, seed, *, env="CartPole-v1", algo="ppo", **settings):
    flat = {f"{group}.{name}": value for group, own in SHORT.items() for name, value in own.items()}
    run = relayrl.train(env, algo=algo, seed=seed, run_dir=run_dir, settings=flat | settings, progress=False)
    return run.result


def test_a_trial_is_the_run_that_train_makes(tmp_path, sweep_with):
    grid = {**BASE, "seeds": [1, 2], "grid": {"pi_lr": [1.0e-3, 1.0e-2]}}
    report = sweep_with(InThisProcess(), grid, sweep_dir=tmp_path / "s")
    for trial in report.trials:
        for seed in (1, 2):
            alone = trained(tmp_path / f"{trial.trial}-{seed}", seed, pi_lr=trial.settings["pi_lr"])
            assert trial.stretches[0].parameter_hashes[seed] == alone.parameter_hash
            assert trial.values[seed] == alone.mean_return


def test_several_agents_with_an_algorithm_that_varies(tmp_path, sweep_with):
    config = {**BASE, "env": "mpe2:simple_adversary_v3", "grid": {"algo": ["ippo", "mappo"]}}
    config["objective"] = {"metric": "adversary_0/episode/return_mean", "direction": "minimize"}
    report = sweep_with(InThisProcess(), config, sweep_dir=tmp_path / "s")
    assert [trial.state.value for trial in report.trials] == ["done", "done"]
    for trial in report.trials:
        run = relayrl.load_run(trial.run_dirs[1])
        assert (run.settings.algo, run.settings.seed) == (trial.settings["algo"], 1)
        assert trial.value == run.history["adversary_0/episode/return_mean"][-1]
    alone = trained(tmp_path / "alone", 1, env="mpe2:simple_adversary_v3", algo="mappo")
    assert report.trials[1].stretches[0].parameter_hashes[1] == alone.parameter_hash


def test_a_run_that_paused_at_rungs_is_the_one_that_never_did(tmp_path, sweep_with):
    search = {"search": {"ranges": {"pi_lr": {"log": [1.0e-4, 1.0e-2]}}}, "trials": 4}
    config = {**BASE, **search, "pruning": {"rule": "halving", "interval": 16, "eta": 2}}
    report = sweep_with(InThisProcess(), config, sweep_dir=tmp_path / "s")
    assert sorted(len(trial.stretches) for trial in report.trials) == [1, 1, 2, 3]
    assert report.best.num_env_steps == 64
    alone = trained(tmp_path / "alone", 1, pi_lr=report.best.settings["pi_lr"])
    assert report.best.stretches[-1].parameter_hashes[1] == alone.parameter_hash
    history = relayrl.load_run(report.best.run_dirs[1]).history
    rows = zip(history["num_env_steps"], history["evaluation/return_mean"], strict=True)
    steps = [step for step, number in rows if math.isfinite(number)]
    assert steps == [16, 32, 48, 64]


class CutsOff(InThisProcess):
    """Dies with a trial that it was about to start."""

    def __init__(self, most: int) -> None:
        self._left = most

    def start(self, order):
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return super().start(order)


def test_a_population_has_the_same_lineage_and_networks_every_time(tmp_path, sweep_with):
    ranges = {"pi_lr": {"log": [1.0e-4, 1.0e-1]}, "entropy_coef": {"float": [0.0, 0.1]}}
    search = {"sampler": "pbt", "ranges": ranges, "population": {"size": 3, "interval": 32}}
    config = {**BASE, "search": search}
    first = sweep_with(InThisProcess(), config, sweep_dir=tmp_path / "first")
    with pytest.raises(KeyboardInterrupt):
        sweep_with(CutsOff(4), config, sweep_dir=tmp_path / "second")
    second = sweep_with(InThisProcess(), config, sweep_dir=tmp_path / "second")
    assert [t.stretches for t in first.trials] == [t.stretches for t in second.trials]
    assert [t.lineage for t in first.trials] == [t.lineage for t in second.trials]
    (copied,) = [trial for trial in first.trials if trial.stretches[1].parent != trial.trial]
    parent = first.trials[copied.stretches[1].parent]
    runs = tmp_path / "first" / "runs"
    begun, left = (
        runs / f"trial{number:04d}-seed1-generation{generation:03d}" / "checkpoints" / "step_000000000032.ckpt"
        for number, generation in ((copied.trial, 1), (parent.trial, 0))
    )
    assert digest(begun) == digest(left)
    assert copied.stretches[1].settings != parent.stretches[1].settings
    assert copied.stretches[1].parameter_hashes != parent.stretches[1].parameter_hashes
    assert relayrl.load_run(copied.run_dirs[1]).settings.params.pi_lr == copied.settings["pi_lr"]


def test_a_copied_member_goes_on_as_its_parent_does(tmp_path, sweep_with):
    population = {"size": 2, "interval": 16, "factors": [1.0], "resample": 0.0}
    search = {"sampler": "pbt", "ranges": {"pi_lr": {"log": [1.0e-3, 1.0e-1]}}, "population": population}
    report = sweep_with(InThisProcess(), {**BASE, "search": search}, sweep_dir=tmp_path / "s")
    first, last = ([trial.stretches[generation] for trial in report.trials] for generation in (0, 1))
    assert first[0].parameter_hashes != first[1].parameter_hashes
    assert last[0].parent == last[1].parent
    assert last[0].parameter_hashes == last[1].parameter_hashes
    assert last[0].values == last[1].values
    folders = sorted(path.name for path in (tmp_path / "s" / "runs").iterdir() if (path / "checkpoints").exists())
    assert len(folders) == 4  # two members of the last two of four generations
    assert all(name.endswith(("generation002", "generation003")) for name in folders)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_that_diverges_is_a_trial_that_failed(tmp_path, sweep_with):
    report = sweep_with(InThisProcess(), {**BASE, "grid": {"pi_lr": [1.0e-3, 1.0e300]}}, sweep_dir=tmp_path / "s")
    assert [trial.state.value for trial in report.trials] == ["done", "failed"]
    assert "finite" in report.trials[1].error
    assert report.best.trial == 0
