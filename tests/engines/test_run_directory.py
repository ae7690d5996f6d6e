"""Who may write to the folder of a run: one process at a time, from before its first file is written to the end."""

import multiprocessing
import os
import signal

import pytest

import relayrl
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.process.interrupts import Interrupt
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.sessions import TrainRequest, open_session, run_session
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.errors import CheckpointError, ConfigError

TINY = {
    "trainer.time_horizon": 16,
    "trainer.max_steps": 32,
    "environment.num_envs": 1,
    "network.hidden_sizes": [4],
    "params.train_pi_iters": 1,
    "params.train_vf_iters": 1,
    "evaluation.episodes": 0,
    "statistics.tensorboard": False,
}
FORK = multiprocessing.get_context("fork")


def request(path, *assignments, resume=False):
    return TrainRequest(None if resume else "native:CartPole", path, None, TINY, list(assignments), resume)


def trained(path):
    return relayrl.train("native:CartPole", run_dir=path, settings=TINY, progress=False)


def content(path):
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}


def test_a_refused_resume_changes_no_file_of_the_run_that_goes_on(tmp_path):
    trained(tmp_path / "run")
    before = content(tmp_path / "run")
    with RunDirectory(tmp_path / "run").locked():
        with pytest.raises(ConfigError, match="another process is training"):
            open_session(request(tmp_path / "run", "max_steps=64", "gamma=0.5", resume=True))
        assert content(tmp_path / "run") == before


def test_a_session_holds_the_lock_from_its_first_file_to_its_end(tmp_path):
    session = open_session(request(tmp_path / "run"))
    with pytest.raises(ConfigError, match="another process is training"):
        RunDirectory(tmp_path / "run").lock()
    with Interrupt() as interrupt:
        run_session(session, lambda _: None, interrupt)
    with RunDirectory(tmp_path / "run").locked():
        pass


def _try_to_begin(path, barrier, outcomes):
    barrier.wait(60)
    try:
        open_session(request(path, f"seed={os.getpid()}"))
        outcomes.put(os.getpid())
    except ConfigError as error:
        outcomes.put(str(error))
    barrier.wait(60)


def test_of_processes_that_start_in_one_folder_at_once_one_begins(tmp_path):
    barrier, outcomes = FORK.Barrier(4), FORK.Queue()
    children = [FORK.Process(target=_try_to_begin, args=(tmp_path / "run", barrier, outcomes)) for _ in range(4)]
    for child in children:
        child.start()
    found = [outcomes.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
    (winner,) = [outcome for outcome in found if isinstance(outcome, int)]
    refusals = [outcome for outcome in found if isinstance(outcome, str)]
    assert all("another process is training" in text or "already holds a run" in text for text in refusals)
    assert RunDirectory(tmp_path / "run").settings().seed == winner


def _hold(path, ready):
    with RunDirectory(path).locked():
        ready.set()
        signal.pause()


def test_the_lock_of_a_killed_process_is_nobodys(tmp_path):
    ready = FORK.Event()
    child = FORK.Process(target=_hold, args=(tmp_path / "run", ready))
    child.start()
    assert ready.wait(60)
    with pytest.raises(ConfigError, match="another process is training"):
        RunDirectory(tmp_path / "run").lock()
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    with RunDirectory(tmp_path / "run").locked():
        pass


def test_runs_that_start_within_a_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = build_run_settings("native:CartPole", None, TINY, [])
    directories = [RunDirectory.make_default(settings) for _ in range(5)]
    for directory in directories:
        directory.create(settings)
    assert len({directory.path for directory in directories}) == 5


def test_resume_without_a_checkpoint_is_refused_and_changes_no_settings(tmp_path):
    settings = build_run_settings("native:CartPole", None, TINY, [])
    RunDirectory(tmp_path / "run").create(settings)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"run has no checkpoint to resume from.*without --resume"):
        relayrl.train(run_dir=tmp_path / "run", resume=True, steps=64, progress=False)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_resume_with_damaged_checkpoints_only_names_one_and_changes_no_settings(tmp_path):
    trained(tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("step_*.ckpt"):
        path.write_bytes(path.read_bytes()[:-1])
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with pytest.raises(CheckpointError, match=r"all 2 checkpoints .*step_000000000032.ckpt is damaged.*new run"):
        relayrl.train(run_dir=tmp_path / "run", resume=True, steps=64, progress=False)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_a_damaged_checkpoint_is_named_with_the_one_that_is_used_instead(tmp_path, caplog):
    trained(tmp_path / "run")
    (_, newest) = sorted((tmp_path / "run" / "checkpoints").glob("step_*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-1])
    engine = LocalEngine(RunDirectory(tmp_path / "run").settings(), RunDirectory(tmp_path / "run"))
    assert engine.resume()
    engine.close()
    assert "step_000000000032.ckpt is damaged" in caplog.text
    assert "going back to step_000000000000.ckpt" in caplog.text


@pytest.mark.parametrize("made", [True, False])
def test_resume_where_there_is_no_run_is_refused_and_leaves_nothing(made, tmp_path):
    if made:
        (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="holds no run"):
        relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False)
    assert list(tmp_path.rglob("*")) == ([tmp_path / "run"] if made else [])
