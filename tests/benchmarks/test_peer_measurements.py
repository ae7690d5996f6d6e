"""From JSON lines to thread settings, ratios and the page."""

import json

import pytest
from jobs import JOBS, OWN_CHOICE
from measurements import Measurement, append, comparisons, read, threads_to_run
from results_page import BEGIN, END, number, section, target_table, work_table
from targets import ANY_TORCH, OURS, Target

SB3 = next(job for job in JOBS if job.name == "Stable-Baselines3/W1")


def measured(peer, rate, *, work="W1", variant="", threads=1, place=("a", 0), **figures):
    common = {"version": "1.0", "process_peak_mib": 300.0, "mean_return": 400.0, "env_steps_per_s": rate}
    return Measurement(*place, peer, work, variant, threads, "2 cores", {**common, **figures})


def failed(peer, error, work="W1"):
    return Measurement("a", 0, peer, work, "", 1, "2 cores", error=error)


def test_lines_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "runs.jsonl"
    assert read(path) == []
    kept = [measured(OURS, 5.0), failed("skrl", "WorkerError: no")]
    for measurement in kept:
        append(path, measurement)
    assert read(path) == kept
    assert [json.loads(line)["peer"] for line in path.read_text().splitlines()] == [OURS, "skrl"]


def test_all_threads_are_tried_and_then_the_better_one():
    assert threads_to_run(SB3, []) == [1, 2]
    assert threads_to_run(SB3, [measured("Stable-Baselines3", 10.0)]) == [1, 2]
    both = [measured("Stable-Baselines3", 10.0), measured("Stable-Baselines3", 12.0, threads=2)]
    assert threads_to_run(SB3, both) == [2]
    assert threads_to_run(SB3, [*both, measured("Stable-Baselines3", 30.0)]) == [1]


def test_ratios_are_taken_within_a_round():
    rounds = [("a", 0), ("a", 1), ("b", 0)]
    ours = [measured(OURS, rate, threads=OWN_CHOICE, place=p) for rate, p in zip((60, 30, 40), rounds, strict=True)]
    theirs = [measured("skrl", rate, place=p) for rate, p in zip((10, 10, 10), rounds, strict=True)]
    elsewhere = measured("skrl", 1000.0, place=("c", 0))
    (found,) = comparisons(Target("W1", "skrl", 5.0), [*ours, *theirs, elsewhere])
    assert found.ratios == [6.0, 3.0, 4.0]
    assert found.ratio == 4.0
    assert not found.is_met


def test_a_peer_counts_with_its_best_variant_and_threads():
    runs = [measured(OURS, 60.0), measured("skrl", 10.0, variant="sync"), measured("skrl", 20.0, variant="vector")]
    runs += [measured("skrl", 30.0, variant="vector", threads=2), measured("TorchRL", 3.0)]
    (found,) = comparisons(Target("W1", ANY_TORCH, 3.0), runs)
    assert (found.peer, found.peer_variant, found.ratio) == ("skrl", "vector", 2.0)
    assert found.num_rivals == 2
    assert f"| {ANY_TORCH} of 2 measured: skrl vector |" in target_table([found.target], runs)[2]


def test_seconds_and_memory_are_better_when_smaller():
    target = Target("W1", "skrl", 2.0, metric="process_peak_mib")
    runs = [measured(OURS, 1.0, process_peak_mib=100.0), measured("skrl", 9.0, process_peak_mib=250.0)]
    (found,) = comparisons(target, runs)
    assert found.ratio == 2.5
    assert found.is_met


def test_target_lines_say_met_missed_or_not_measured():
    runs = [measured(OURS, 60.0, variant="CartPole-v1"), measured("skrl", 10.0), measured("TorchRL", 20.0)]
    lines = target_table([Target("W1", "skrl", 5.0), Target("W1", "TorchRL", 5.0), Target("W1", "RLlib", 5.0)], runs)[
        2:
    ]
    assert lines[0].endswith("| 60.0 | 10.0 | 6.00 (6.00–6.00) | 1 | ≥ 5 | met |")
    assert lines[1].endswith("| 3.00 (3.00–3.00) | 1 | ≥ 5 | **missed** by 40.0% |")
    assert lines[2].endswith("| 0 | ≥ 5 | not measured |")


def test_nobody_is_silently_absent():
    runs = [
        measured("Stable-Baselines3", 8000.0, foreign_cores=0.1),
        measured("Stable-Baselines3", 9000.0, foreign_cores=0.9),
        failed("Tianshou", "InstallError: no | wheel"),
    ]
    lines = work_table([job for job in JOBS if job.work == "W1"], runs)
    assert len(lines) == 2 + len([job for job in JOBS if job.work == "W1"])
    (sb3,) = (line for line in lines if "Stable-Baselines3" in line)
    assert "| 1.0 | 1 | 8,500 (8,000–9,000)* | 2 | 300 | 400.0 |" in sb3
    (tianshou,) = (line for line in lines if "Tianshou" in line)
    assert "failed: InstallError: no ¦ wheel" in tianshou
    (torchrl,) = (line for line in lines if "TorchRL" in line)
    assert "not measured yet" in torchrl


def test_the_page_has_every_work_once():
    page = section(JOBS, [measured(OURS, 60.0, variant="CartPole-v1")])
    assert page.startswith(BEGIN)
    assert page.endswith(END)
    works = list(dict.fromkeys(job.work for job in JOBS))
    assert [line.split("**")[1] for line in page.splitlines() if line.startswith("**")] == works


@pytest.mark.parametrize(
    ("value", "text"), [(3.21, "3.2"), (123.4, "123"), (9876.0, "9,876"), (28_240.0, "28.2k"), (1.5e6, "1,500k")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text
