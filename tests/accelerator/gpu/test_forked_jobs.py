"""Jobs in forked processes are done once each; processes that fail or do not end are counted, and are gone."""

import os
import signal
import time
from functools import partial

import pytest

from relayrl.accelerator.gpu.compilation.forked_jobs import do_in_forks


def note(folder, name):
    (folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()


def fail(error):
    raise error


def names_in(folder):
    return sorted(path.name.partition("-")[0] for path in folder.iterdir())


@pytest.mark.parametrize("num_processes", [2, 5, 40])
def test_every_job_is_done_once_in_another_process(tmp_path, num_processes):
    jobs = [partial(note, tmp_path, f"job{i:02}") for i in range(23)]
    assert do_in_forks(jobs, num_processes) == 0
    assert names_in(tmp_path) == [f"job{i:02}" for i in range(23)]
    assert not any(f"-{os.getpid()}-" in path.name for path in tmp_path.iterdir())


def test_one_job_or_one_core_is_no_reason_to_fork(tmp_path):
    assert do_in_forks([partial(note, tmp_path, "a")], 8) == 0
    assert do_in_forks([partial(note, tmp_path, "a"), partial(note, tmp_path, "b")], 1) == 0
    assert names_in(tmp_path) == []


def test_processes_that_fail_are_counted_and_the_others_go_on(tmp_path, capfd):
    endings = [
        partial(fail, ValueError("it fails")),
        partial(os._exit, 3),
        lambda: os.kill(os.getpid(), signal.SIGKILL),
    ]
    jobs = [*endings, *[partial(note, tmp_path, f"job{i}") for i in range(6)]]
    assert do_in_forks(jobs, 4) == 3
    assert names_in(tmp_path) == [f"job{i}" for i in range(6)]
    assert "it fails" not in "".join(capfd.readouterr())


def test_processes_that_are_late_are_killed(tmp_path):
    assert do_in_forks([partial(time.sleep, 60.0), partial(note, tmp_path, "quick")], 2, deadline_s=0.5) == 1
    assert names_in(tmp_path) == ["quick"]
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
