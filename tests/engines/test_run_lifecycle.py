"""What happens to a run: evaluation, early stop, interrupts, divergence, full disks, damage, other runs' networks, threads."""

import math
import resource
import signal
import threading

import pytest

from relayrl.engines.local.local_engine import LocalEngine, RunInterrupted
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.errors import ConfigError, DiskError, TrainingDivergedError
from relayrl.training.files.checkpoints import CheckpointStore, load_checkpoint

QUICK = {
    "trainer.time_horizon": 16,
    "trainer.max_steps": 320,
    "trainer.summary_freq": 64,
    "trainer.checkpoint_interval": 64,
    "environment.num_envs": 2,
    "network.hidden_sizes": (8,),
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "evaluation.episodes": 2,
    "statistics.tensorboard": False,
}


WITHOUT_PARAMS = {key: value for key, value in QUICK.items() if not key.startswith("params")}


def settings_for(env: str = "native:CartPole", **flags) -> RunSettings:
    return build_run_settings(env, None, QUICK | {key.replace("__", "."): value for key, value in flags.items()}, [])


def engine_for(settings: RunSettings, path, *, resume: bool = False) -> LocalEngine:
    directory = RunDirectory(path)
    if not resume:
        directory.create(settings)
    engine = LocalEngine(settings, directory)
    if resume:
        assert engine.resume()
    return engine


def run(settings: RunSettings, path, *, resume: bool = False):
    return engine_for(settings, path, resume=resume).run(lambda _: None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "run"
    return run(settings_for(), path), path


def test_evaluating_during_the_run_changes_no_parameter(plain, tmp_path):
    result = run(settings_for(evaluation__interval=32, evaluation__interval_episodes=3), tmp_path / "a")
    assert result.parameter_hash == plain[0].parameter_hash
    assert result.returns == plain[0].returns
    assert math.isfinite(result.best_return)


def test_the_best_policies_are_kept_with_their_step_and_return(tmp_path):
    result = run(settings_for(evaluation__interval=64), tmp_path / "a")
    step, state = load_checkpoint(tmp_path / "a" / "checkpoints" / "best.ckpt")
    assert state["metrics"]["evaluation/return_mean"] == result.best_return
    assert step in (64, 128, 192, 256, 320)
    fresh = engine_for(settings_for(), tmp_path / "b")
    fresh.init_from(tmp_path / "a" / "checkpoints" / "best.ckpt")
    fresh.close()


def test_a_run_stops_at_its_target(tmp_path):
    result = run(settings_for(evaluation__interval=64, evaluation__target_return=1.0), tmp_path / "a")
    assert result.reached_target
    assert result.num_env_steps == 64
    again = run(settings_for(evaluation__interval=64, evaluation__target_return=1.0), tmp_path / "a", resume=True)
    assert again.num_env_steps == 64


def test_an_interrupted_run_saves_and_continues_exactly(plain, tmp_path):
    engine = engine_for(settings_for(), tmp_path / "a")
    updates = []
    with pytest.raises(RunInterrupted):
        engine.run(updates.append, lambda: len(updates) == 3)
    assert CheckpointStore(tmp_path / "a" / "checkpoints", 5).load_newest()[0] == 96
    assert run(settings_for(), tmp_path / "a", resume=True).parameter_hash == plain[0].parameter_hash


def test_a_damaged_checkpoint_costs_steps_but_changes_nothing(plain, tmp_path, caplog):
    engine = engine_for(settings_for(), tmp_path / "a")
    updates = []
    with pytest.raises(RunInterrupted):
        engine.run(updates.append, lambda: len(updates) == 7)
    newest = sorted((tmp_path / "a" / "checkpoints").glob("step_*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-3])
    assert run(settings_for(), tmp_path / "a", resume=True).parameter_hash == plain[0].parameter_hash
    assert "damaged" in caplog.text
    rows = (tmp_path / "a" / "progress.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["32", "64", "128", "192", "256", "320"]


def test_an_environment_that_cannot_be_saved_is_told_and_begins_new_episodes(tmp_path, caplog):
    env = "vmas:simple_spread"
    engine = engine_for(settings_for(env), tmp_path / "a")
    updates = []
    with pytest.raises(RunInterrupted):
        engine.run(updates.append, lambda: len(updates) == 3)
    assert run(settings_for(env), tmp_path / "a", resume=True).num_env_steps == 320
    assert "cannot be saved: environments begin new episodes" in caplog.text


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy tells of the overflow that is the point here
def test_a_loss_that_is_not_finite_stops_with_the_last_good_checkpoint(tmp_path):
    first = engine_for(settings_for(), tmp_path / "a")
    updates = []
    with pytest.raises(RunInterrupted):
        first.run(updates.append, lambda: len(updates) == 2)
    broken = engine_for(settings_for(params__vf_lr=1e25, params__max_grad_norm=None), tmp_path / "a", resume=True)
    with pytest.raises(TrainingDivergedError, match=r"last good checkpoint is .*step_000000000064\.ckpt"):
        broken.run(lambda _: None)
    assert CheckpointStore(tmp_path / "a" / "checkpoints", 5).load_newest()[0] == 64


def test_a_full_disk_is_one_clear_error_and_what_was_saved_stays(tmp_path):
    settings = settings_for(trainer__checkpoint_interval=32)
    engine = engine_for(settings, tmp_path / "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def fill(progress):
        if progress.num_env_steps == 64:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))

    try:
        with pytest.raises(DiskError, match="Make room, then continue with --resume"):
            engine.run(fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert CheckpointStore(tmp_path / "a" / "checkpoints", 5).load_newest()[0] == 64
    assert run(settings, tmp_path / "a", resume=True).num_env_steps == 320


def test_a_run_starts_from_another_ones_networks(plain, tmp_path):
    still = settings_for(params__pi_lr=1e-30, params__vf_lr=1e-30, trainer__max_steps=32)
    engine = engine_for(still, tmp_path / "a")
    engine.init_from(plain[1])
    result = engine.run(lambda _: None)
    assert result.parameter_hash == plain[0].parameter_hash
    assert result.num_env_steps == 32


def test_off_policy_networks_come_with_their_critics_and_targets(tmp_path):
    flags = WITHOUT_PARAMS | {
        "algo": "td3",
        "trainer.max_steps": 64,
        "params": {"batch_size": 8, "learning_starts": 16},
    }
    settings = build_run_settings("native:Pendulum", None, flags, [])
    source = run(settings, tmp_path / "a")
    engine = engine_for(settings, tmp_path / "b")
    engine.init_from(tmp_path / "a")
    _, state = CheckpointStore(tmp_path / "a" / "checkpoints", 1).load_newest()
    own = engine._parts.trainer.state_dict()
    assert own["num_env_steps"] == 0
    saved = state["trainer"]["algorithm"]["groups"]["agent"]
    for network in ("q", "target_q", "target_policy"):
        for name, tensor in own["algorithm"]["groups"]["agent"][network].items():
            assert (tensor == saved[network][name]).all()
    engine.close()
    assert source.num_env_steps == 64


@pytest.mark.parametrize("learns", [True, False])
def test_a_learned_temperature_comes_with_the_networks_and_a_fixed_one_is_the_settings(tmp_path, learns):
    params = {"batch_size": 8, "learning_starts": 16, "temperature_lr": 0.05}
    flags = WITHOUT_PARAMS | {"algo": "sac", "trainer.max_steps": 64}
    run(build_run_settings("native:Pendulum", None, flags | {"params": params}, []), tmp_path / "a")
    _, state = CheckpointStore(tmp_path / "a" / "checkpoints", 1).load_newest()
    learned = math.exp(float(state["trainer"]["algorithm"]["temperatures"]["agent"]["log_alpha"]))
    assert learned < 0.5
    other = params | {"learns_temperature": learns, "init_temperature": 0.7}
    engine = engine_for(build_run_settings("native:Pendulum", None, flags | {"params": other}, []), tmp_path / "b")
    engine.init_from(tmp_path / "a")
    assert engine._parts.trainer._algorithm.temperature("agent") == pytest.approx(learned if learns else 0.7)
    engine.close()


@pytest.mark.parametrize(
    ("env", "flags"),
    [
        ("native:CartPole", {"network.hidden_sizes": (4,)}),
        ("native:Pendulum", {}),
        ("native:Pendulum", {"algo": "td3"}),
    ],
)
def test_networks_of_another_shape_are_refused(plain, tmp_path, env, flags):
    engine = engine_for(build_run_settings(env, None, WITHOUT_PARAMS | flags, []), tmp_path / "a")
    with pytest.raises(ConfigError, match="the networks differ"):
        engine.init_from(plain[1])
    engine.close()


def test_two_processes_cannot_train_in_one_folder(plain):
    directory = RunDirectory(plain[1])
    with directory.locked(), pytest.raises(ConfigError, match="another process is training"), directory.locked():
        pass


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_collecting_and_learning_overlap_and_still_come_to_the_end(tmp_path, algo):
    env = "native:CartPole" if algo == "ppo" else "native:Pendulum"
    own = {} if algo == "ppo" else {"params": {"batch_size": 8, "learning_starts": 32, "update_interval": 4}}
    flags = (
        (QUICK if algo == "ppo" else WITHOUT_PARAMS)
        | own
        | {"algo": algo, "trainer.threaded": True, "evaluation.interval": 128}
    )
    settings = build_run_settings(env, None, flags, [])
    engine = engine_for(settings, tmp_path / "a")
    updates = []
    with pytest.raises(RunInterrupted):
        engine.run(updates.append, lambda: len(updates) == 4)
    result = run(settings, tmp_path / "a", resume=True)
    assert result.num_env_steps == 320
    header, *rows = (tmp_path / "a" / "progress.csv").read_text().splitlines()
    lag = header.split(",").index("policy/lag_versions")
    lags = [float(row.split(",")[lag]) for row in rows if row.split(",")[lag]]
    assert max(lags) > 0 if algo == "ppo" else lags
    assert not [thread for thread in threading.enumerate() if thread.name == "trainer"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_crash_in_the_trainers_thread_is_raised_with_its_traceback(tmp_path):
    settings = settings_for(params__vf_lr=1e25, params__max_grad_norm=None, trainer__threaded=True)
    engine = engine_for(settings, tmp_path / "a")
    with pytest.raises(TrainingDivergedError) as caught:
        engine.run(lambda _: None)
    trace = []
    error = caught.value.__cause__
    while error is not None:
        step = error.__traceback__
        while step is not None:
            trace.append(step.tb_frame.f_code.co_name)
            step = step.tb_next
        error = error.__cause__
    assert "_learn" in trace
    assert not [thread for thread in threading.enumerate() if thread.name == "trainer"]
