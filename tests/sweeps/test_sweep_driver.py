"""Sweeps through the seam of runners, with trials that cost nothing: concurrency, restarts, failures, sharing, files."""

import json
import threading
from pathlib import Path

import pytest
import yaml
from fake_trials import SHORT, Ended, FakeRunner

import relayrl
from cli_in_process import relayrl as command
from relayrl.errors import ConfigError
from relayrl.extend import register_trial_runner

GRID = {
    "env": "CartPole-v1",
    "settings": SHORT,
    "seeds": [1, 2],
    "grid": {"pi_lr": [1.0e-3, 1.0e-2, 1.0e-1], "gamma": [0.9, 0.99]},
}
PBT = {
    "env": "CartPole-v1",
    "settings": SHORT,
    "seeds": [1, 2],
    "search": {
        "sampler": "pbt",
        "ranges": {"pi_lr": {"log": [1.0e-4, 1.0e-1]}, "entropy_coef": {"float": [0.0, 0.1]}},
        "population": {"size": 4, "interval": 16},
    },
}
HALVING = {
    "env": "CartPole-v1",
    "settings": SHORT,
    "search": {"ranges": {"pi_lr": {"log": [1.0e-4, 1.0e-1]}}},
    "pruning": {"rule": "halving", "interval": 16, "eta": 2},
    "trials": 6,
    "objective": {"direction": "minimize"},
}


def value(order):
    return order.settings["pi_lr"] * (order.until or 64) + 1e-4 * order.settings["seed"]


def told(report):
    """What must not depend on timing."""
    trials = json.loads(report.to_json())["trials"]
    return [{**trial, "seconds": None, "run_dirs": None} for trial in trials]


def test_a_grid_ends_in_a_table_a_picture_and_settings_to_train_with(tmp_path, sweep_with, pictures):
    runner = FakeRunner(value)
    report = sweep_with(runner, {**GRID, "concurrency": 3}, sweep_dir=tmp_path / "grid")
    assert len(report.trials) == 6
    assert report.best.trial == 4
    assert report.best.value == pytest.approx(0.1 * 64 + 1.5e-4)
    assert report.best.settings == {"pi_lr": 0.1, "gamma": 0.9}
    assert report.picture.stat().st_size > 10_000
    best = yaml.safe_load(report.best_settings.read_text())
    assert (best["params"]["pi_lr"], best["params"]["gamma"]) == (0.1, 0.9)
    assert "seed" not in best
    assert "--seed 3" in report.best_settings.read_text()
    done = command("train", "--config", str(report.best_settings), "--print-config", "--seed", "7")
    assert yaml.safe_load(done.stdout)["params"]["pi_lr"] == 0.1
    shown = command("sweep", "show", str(tmp_path / "grid"), "--json", "-o", str(tmp_path / "again.svg"))
    assert "chosen on seeds 1, 2; report with others" in shown.stdout
    assert [t["value"] for t in json.loads(shown.stdout.splitlines()[-1])["trials"]] == [t.value for t in report.trials]
    assert (tmp_path / "again.svg").exists()


@pytest.mark.parametrize("config", [GRID, PBT, HALVING], ids=["grid", "pbt", "halving"])
def test_results_do_not_depend_on_the_concurrency(config, tmp_path, sweep_with):
    alone = sweep_with(FakeRunner(value), {**config, "concurrency": 1}, sweep_dir=tmp_path / "alone")
    for seed, concurrency in enumerate([2, 5]):
        runner = FakeRunner(value, seed)
        beside = sweep_with(runner, {**config, "concurrency": concurrency}, sweep_dir=tmp_path / str(seed))
        assert told(beside) == told(alone)


def test_a_population_hands_its_networks_on(tmp_path, sweep_with):
    report = sweep_with(FakeRunner(value), {**PBT, "concurrency": 2}, sweep_dir=tmp_path / "pbt")
    assert all(len(trial.lineage) == 4 and trial.lineage[-1] == trial.trial for trial in report.trials)
    copied = [trial for trial in report.trials if set(trial.lineage) != {trial.trial}]
    assert copied
    (parent,) = {each.parent for each in copied[0].stretches if each.parent not in (None, copied[0].trial)} or {None}
    assert parent is not None
    done = command("sweep", "show", str(tmp_path / "pbt"))
    assert "→".join(map(str, copied[0].lineage)) in done.stdout
    assert "these are the last ones" in report.best_settings.read_text()


def test_pruned_trials_are_told_apart(tmp_path, sweep_with):
    report = sweep_with(FakeRunner(value), HALVING, sweep_dir=tmp_path / "halving")
    states = [trial.state.value for trial in report.trials]
    assert (states.count("done"), states.count("pruned")) == (2, 4)  # one of four, and one of two
    rates = {trial.settings["pi_lr"]: trial for trial in report.trials}
    assert rates[min(rates)].state.value == "done"  # minimized
    assert all(trial.num_env_steps == 16 for trial in report.trials if len(trial.stretches) == 1)


class Killed(BaseException):
    """The end of the sweep's process, as far as a test can have it in its own."""


class DiesAfter(FakeRunner):
    def __init__(self, most: int) -> None:
        super().__init__(value)
        self._most = most

    def start(self, order):
        if len(self.started) == self._most:
            raise Killed
        return super().start(order)


@pytest.mark.parametrize("config", [GRID, PBT, HALVING], ids=["grid", "pbt", "halving"])
def test_a_sweep_that_died_goes_on_without_repeating_anything(config, tmp_path, sweep_with):
    whole = sweep_with(FakeRunner(value), config, sweep_dir=tmp_path / "whole")
    started = []
    for most in (3, 4):
        runner = DiesAfter(most)
        with pytest.raises(Killed):
            sweep_with(runner, config, sweep_dir=tmp_path / "died")
        started += runner.started
    rest = FakeRunner(value)
    assert told(sweep_with(rest, config, sweep_dir=tmp_path / "died", resume=True)) == told(whole)
    started += rest.started
    assert len(started) == len(set(started))
    again = FakeRunner(value)
    sweep_with(again, config, sweep_dir=tmp_path / "died")
    assert again.started == []


def test_a_trial_that_fails_is_recorded_and_may_be_run_again(tmp_path, sweep_with):
    def fails(order):
        if order.settings["pi_lr"] == 1.0e-2 and order.settings["seed"] == 2:
            raise RuntimeError("no luck")
        return value(order)

    report = sweep_with(FakeRunner(fails), GRID, sweep_dir=tmp_path / "s")
    assert [trial.state.value for trial in report.trials] == ["done", "done", "failed", "failed", "done", "done"]
    assert report.trials[2].error == "seed 2: no luck"
    assert report.trials[2].value is None
    runner = FakeRunner(value)
    mended = sweep_with(runner, GRID, sweep_dir=tmp_path / "s", retry_failed=True)
    assert [trial.state.value for trial in mended.trials] == ["done"] * 6
    assert runner.started == ["trial 2 seed 2 until None", "trial 3 seed 2 until None"]


def test_a_trial_that_is_killed_is_started_again_a_bounded_number_of_times(tmp_path, sweep_with):
    class Cuts(FakeRunner):
        def start(self, order):
            self.started.append(order.name)
            is_bad = order.settings["pi_lr"] == 1.0e-2
            if self.started.count(order.name) <= (10 if is_bad else 1):
                return Ended("killed by signal 9 (SIGKILL)", 0)
            return super().start(order)

    config = {**GRID, "seeds": [1], "grid": {"pi_lr": [1.0e-3, 1.0e-2]}, "max_restarts": 2}
    runner = Cuts(value)
    report = sweep_with(runner, config, sweep_dir=tmp_path / "s")
    assert [trial.state.value for trial in report.trials] == ["done", "failed"]
    assert report.trials[1].error == "seed 1: killed by signal 9 (SIGKILL), after 2 restarts"
    assert runner.started.count("trial 1 seed 1") == 3


def test_sweeps_on_one_directory_share_the_work(tmp_path):
    config = {**GRID, "seeds": [1, 2, 3], "concurrency": 4}
    runners = [FakeRunner(value, seed) for seed in range(3)]
    for number, runner in enumerate(runners):
        register_trial_runner(f"shared-{number}", lambda runner=runner: runner)
    reports = []

    def work(number):
        own = {**config, "runner": f"shared-{number}"}
        reports.append(relayrl.sweep(own, sweep_dir=tmp_path / "s", progress=False, most_here=2))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert len(reports) == 3
    started = [name for runner in runners for name in runner.started]
    assert len(started) == len(set(started)) == 18
    assert told(reports[0]) == told(reports[1]) == told(reports[2])


def test_a_sweep_is_not_gone_on_with_by_other_settings(tmp_path, sweep_with):
    sweep_with(FakeRunner(value), GRID, sweep_dir=tmp_path / "s")
    with pytest.raises(ConfigError, match="begun with another grid and seeds"):
        sweep_with(FakeRunner(value), {**GRID, "seeds": [1], "grid": {"pi_lr": [1.0]}}, sweep_dir=tmp_path / "s")
    with pytest.raises(ConfigError, match="holds no sweep to resume"):
        sweep_with(FakeRunner(value), GRID, sweep_dir=tmp_path / "other", resume=True)


def test_a_search_may_grow(tmp_path, sweep_with):
    search = {"env": "CartPole-v1", "settings": SHORT, "search": {"ranges": {"pi_lr": {"log": [1e-4, 1e-1]}}}}
    few = sweep_with(FakeRunner(value), {**search, "trials": 3}, sweep_dir=tmp_path / "s")
    runner = FakeRunner(value)
    more = sweep_with(runner, {**search, "trials": 5}, sweep_dir=tmp_path / "s")
    assert told(more)[:3] == told(few)
    assert len(runner.started) == 2
    with pytest.raises(ConfigError, match="has 5 trials already"):
        sweep_with(runner, {**search, "trials": 4}, sweep_dir=tmp_path / "s")


def test_a_tpe_search_that_grows_is_the_one_that_began_with_as_many(tmp_path, sweep_with):
    search = {"sampler": "tpe", "ranges": {"pi_lr": {"log": [1e-4, 1e-1]}}}
    config = {"env": "CartPole-v1", "settings": SHORT, "search": search, "batch": 4}
    sweep_with(FakeRunner(value), {**config, "trials": 6}, sweep_dir=tmp_path / "s")
    grown = sweep_with(FakeRunner(value), {**config, "trials": 11}, sweep_dir=tmp_path / "s")
    begun = sweep_with(FakeRunner(value), {**config, "trials": 11}, sweep_dir=tmp_path / "t")
    assert told(grown) == told(begun)


def test_what_would_make_results_depend_on_history_is_refused(tmp_path, sweep_with):
    sweep_with(FakeRunner(value), {**HALVING, "trials": 6}, sweep_dir=tmp_path / "s")
    with pytest.raises(ConfigError, match=r"from a multiple of batch \(4\)"):
        sweep_with(FakeRunner(value), {**HALVING, "trials": 8}, sweep_dir=tmp_path / "s")
    with pytest.raises(ConfigError, match="grids and random searches"):
        sweep_with(FakeRunner(value), HALVING, sweep_dir=tmp_path / "s", retry_failed=True)
    with pytest.raises(ConfigError, match="a population takes its size"):
        sweep_with(FakeRunner(value), {**PBT, "budget": {"env_steps": 5}}, sweep_dir=tmp_path / "p")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"grid": {"pi_lrr": [1.0]}}, "did you mean"),
        ({"grid": {"pi_lr": [1.0, -1.0]}}, "greater than"),
        ({"settings": {"trainer": {"max_stepz": 1}}}, "did you mean"),
        ({"env": "CartPol-v1"}, "CartPol"),
        ({"env": "my_module:factory"}, "add --trust"),
        ({"settings": {"schedules": {"pi_lr": "my_module:rate"}}}, "--trust"),
        ({"runner": "moon"}, "unknown trial runner"),
        ({"concurrncy": 2}, "did you mean"),
    ],
)
def test_mistakes_are_found_before_anything_is_trained(change, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(yaml.safe_dump({**GRID, **change}))
    done = command("sweep", "s.yaml")
    assert done.returncode == 2
    assert complaint in done.complaint
    assert not list(tmp_path.rglob("trial*"))


def test_a_population_varies_only_what_may_change_inside_of_a_run(tmp_path, sweep_with):
    search = {**PBT["search"], "ranges": {"hidden_sizes": {"choice": [[4], [8]]}}}
    with pytest.raises(ConfigError, match=r"search.ranges.hidden_sizes cannot change inside of a run"):
        sweep_with(FakeRunner(value), {**PBT, "search": search}, sweep_dir=tmp_path / "s")


def test_a_sweep_without_a_value_says_so(tmp_path, monkeypatch, pictures):
    monkeypatch.chdir(tmp_path)

    def fails(order):
        raise RuntimeError("never")

    register_trial_runner("never", lambda: FakeRunner(fails))
    Path("s.yaml").write_text(yaml.safe_dump({**GRID, "runner": "never"}))
    done = command("sweep", "s.yaml", "--quiet", "--json")
    assert done.returncode == 1
    assert {trial["error"] for trial in json.loads(done.stdout)["trials"]} == {"seed 1: never"}
    shown = command("sweep", "show", "sweeps/s", "-o", "empty.svg")
    assert (shown.returncode, Path("empty.svg").exists()) == (0, True)
    assert "no trial has a value" in shown.stdout
    assert command("sweep", "show", "nowhere").complaint.endswith("run one with: relayrl sweep CONFIG.yaml")
