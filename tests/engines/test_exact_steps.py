"""A run takes as many steps as it was asked for: its last rollout is as short as needed. And it tells from early on."""

import csv
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import relayrl
from cli_in_process import relayrl as command
from relayrl.algorithms.on_policy import REFERENCE
from relayrl.algorithms.updates.torch_update import PassPlan, TorchUpdate
from relayrl.data.columns import Rollout
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.runs.run_record import RunInterrupted
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.runtime.collector import Collector
from relayrl.sinks.contract import open_source

ON_POLICY = {"num_envs": 4, "time_horizon": 16, "hidden_sizes": [8], "train_pi_iters": 2, "train_vf_iters": 2}
ON_POLICY |= {"num_minibatches": 4, "evaluation.episodes": 0, "lr_schedule": "constant"}
REPLAY = {"num_envs": 4, "hidden_sizes": [8], "learning_starts": 20, "batch_size": 8, "update_interval": 50}
REPLAY |= {"train_iters": 1, "evaluation.episodes": 0, "buffer_size": 500}
BOX = {"environment.options.continuous_actions": True}
RUNS = {
    "on-policy": ("CartPole-v1", "ppo", ON_POLICY),
    "central critics of states": ("native:simple_spread", "mappo", ON_POLICY),
    "several groups": ("native:simple_tag", "ippo", ON_POLICY),
    "memory": (
        "CartPole-v1",
        "ppo",
        ON_POLICY | {"network.memory": {"kind": "gru", "size": 4, "sequence_length": 4}},
    ),
    "no baseline": ("CartPole-v1", "reinforce", {k: v for k, v in ON_POLICY.items() if k != "train_pi_iters"}),
    "workers": ("Pendulum-v1", "ppo", ON_POLICY | {"workers": 2}),
    "threaded": ("CartPole-v1", "ppo", ON_POLICY | {"threaded": True}),
    "replay": ("Pendulum-v1", "sac", REPLAY),
    "replay, threaded": ("Pendulum-v1", "td3", REPLAY | {"threaded": True}),
    "replay of several agents": ("native:simple_spread", "matd3", REPLAY | BOX),
}


def train(env, algo, settings, path, steps, **more) -> relayrl.Run:
    return relayrl.train(env, algo=algo, steps=steps, settings=settings, run_dir=path, progress=False, **more)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((path / "progress.csv").read_text().splitlines()))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("steps", [40, 200])
def test_a_run_takes_the_steps_that_were_asked_for(name, steps, tmp_path):
    run = train(*RUNS[name], tmp_path / "run", steps)
    assert run.result.num_env_steps == steps
    assert int(rows(run.path)[-1]["num_env_steps"]) == steps
    assert [path.name for path in sorted(run.directory.checkpoints.iterdir())][-1] == f"step_{steps:012d}.ckpt"


def test_every_environment_takes_the_same_number_of_steps(tmp_path):
    flags = [f"--set={key}={value}" for key, value in ON_POLICY.items()]
    done = command("train", "CartPole-v1", "--steps", "101", "--run-dir", str(tmp_path / "run"), *flags)
    assert "relayrl: 101 steps are not a multiple of 4 environments: the run takes 104" in done.stderr
    assert relayrl.load_run(tmp_path / "run").result.num_env_steps == 104


def test_whole_rollouts_come_first_and_minibatches_keep_their_size(tmp_path, monkeypatch):
    lengths, plans = [], []
    collect, begin = Collector.collect, TorchUpdate.begin

    def collect_and_tell(self: Collector, version: int, num_steps: int | None = None) -> dict[str, Rollout]:
        rollouts = collect(self, version, num_steps)
        lengths.append(rollouts["agent"].num_steps)
        return rollouts

    def begin_and_tell(self: TorchUpdate, batch, plan: PassPlan):
        plans.append((plan.num_rows, plan.minibatch_rows))
        return begin(self, batch, plan)

    monkeypatch.setattr(Collector, "collect", collect_and_tell)
    monkeypatch.setattr(TorchUpdate, "begin", begin_and_tell)
    monkeypatch.setattr("relayrl.training.trainers.construction.FASTEST", REFERENCE)
    train("CartPole-v1", "ppo", ON_POLICY, tmp_path / "run", 184)
    assert lengths == [16, 16, 14]
    assert plans == [(64, 16), (64, 16), (56, 16)]


def test_the_parameters_of_whole_rollouts_are_those_of_a_longer_run_until_there(tmp_path):
    longer = train("CartPole-v1", "ppo", ON_POLICY | {"checkpoint_interval": 64}, tmp_path / "longer", 200)
    until = train("CartPole-v1", "ppo", ON_POLICY, tmp_path / "until", 192)
    (checkpoint,) = longer.directory.checkpoints.glob("step_*192.ckpt")
    begun = train(
        "CartPole-v1", "ppo", ON_POLICY | {"pi_lr": 1e-30, "vf_lr": 1e-30}, tmp_path / "i", 4, init_from=checkpoint
    )
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    assert np.array_equal(begun.policy.act_greedily(obs), until.policy.act_greedily(obs))
    assert longer.result.parameter_hash != until.result.parameter_hash


@pytest.mark.parametrize("name", ["on-policy", "replay"])
def test_a_run_that_is_extended_from_a_whole_rollout_equals_one_that_was_begun_so(name, tmp_path):
    env, algo, settings = RUNS[name]
    whole = train(env, algo, settings, tmp_path / "whole", 200)
    first = 128 if name == "on-policy" else 96
    train(env, algo, settings, tmp_path / "parts", first)
    resumed = train(None, None, {}, tmp_path / "parts", 200, resume=True)
    assert resumed.result.parameter_hash == whole.result.parameter_hash


def test_a_run_that_is_extended_from_a_shorter_rollout_says_that_it_differs(tmp_path, caplog):
    env, algo, settings = RUNS["on-policy"]
    train(env, algo, settings, tmp_path / "run", 100)
    resumed = train(None, None, {}, tmp_path / "run", 200, resume=True)
    assert resumed.result.num_env_steps == 200
    assert "the run ended at step 100 with a shorter rollout" in caplog.text
    assert [int(row["num_env_steps"]) for row in rows(resumed.path)][-3:] == [100, 164, 200]


def test_a_record_holds_every_step_once_also_of_the_shorter_rollout(tmp_path):
    env, algo, settings = RUNS["on-policy"]
    url = f"arrow:{tmp_path / 'record'}"
    train(env, algo, settings | {"record": url}, tmp_path / "run", 100)
    train(None, None, {}, tmp_path / "run", 180, resume=True)
    with open_source(url) as source:
        assert sum(len(trajectory) for trajectory in source) == 180


def test_a_run_has_a_hundred_rows_unless_it_has_fewer_rollouts(tmp_path):
    many = train("native:CartPole", "ppo", ON_POLICY | {"time_horizon": 2, "num_minibatches": 1}, tmp_path / "a", 4_000)
    assert 100 <= len(rows(many.path)) <= 102
    few = train("native:CartPole", "ppo", ON_POLICY, tmp_path / "b", 640)
    assert len(rows(few.path)) == 10
    replay = train("Pendulum-v1", "sac", REPLAY | {"learning_starts": 240}, tmp_path / "d", 480)
    assert [int(row["num_env_steps"]) for row in rows(replay.path)] == list(range(48, 481, 48))
    asked = train("native:CartPole", "ppo", ON_POLICY | {"summary_freq": 320}, tmp_path / "c", 640)
    assert [int(row["num_env_steps"]) for row in rows(asked.path)] == [64, 320, 640]


def test_replay_has_its_first_row_when_an_episode_ended(tmp_path):
    settings = REPLAY | {"summary_freq": 5_000, "learning_starts": 1_000, "update_interval": 4}
    run = train("Pendulum-v1", "sac", settings, tmp_path / "a", 1_200)
    assert [int(row["num_env_steps"]) for row in rows(run.path)] == [800, 1_200]


def test_an_interrupted_run_leaves_a_row(tmp_path):
    settings = build_run_settings("CartPole-v1", None, {}, [*ON_POLICY.items(), ("summary_freq", 10_000)])
    directory = RunDirectory(tmp_path / "run")
    directory.create(settings)
    seen = []
    with pytest.raises(RunInterrupted):
        LocalEngine(settings, directory).run(seen.append, lambda: len(seen) == 5)
    assert [int(row["num_env_steps"]) for row in rows(directory.path)] == [64, 320]


def test_ctrl_c_leaves_a_row(tmp_path):
    def interrupt_soon() -> None:
        while not (tmp_path / "run" / "progress.csv").exists():
            if done.wait(0.01):
                return
        signal.raise_signal(signal.SIGINT)

    done = threading.Event()
    watcher = threading.Thread(target=interrupt_soon)
    watcher.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            train("CartPole-v1", "ppo", ON_POLICY | {"summary_freq": 10**9}, tmp_path / "run", 10**9)
    finally:
        done.set()
        watcher.join()
    steps = [int(row["num_env_steps"]) for row in rows(tmp_path / "run")]
    (newest,) = sorted((tmp_path / "run" / "checkpoints").glob("step_*"))[-1:]
    assert steps[0] == 64
    assert steps[-1] == int(newest.stem.removeprefix("step_"))


def test_an_environment_without_a_preset_is_said_to_have_none(tmp_path):
    flags = ["--steps", "8", "--set", "num_envs=2", "--set", "evaluation.episodes=0"]
    done = command("train", "native:Acrobot", "--run-dir", str(tmp_path / "a"), *flags)
    assert "relayrl: no preset for native:Acrobot with ppo: generic settings for vector" in done.stderr
    done = command("train", "CartPole-v1", "--run-dir", str(tmp_path / "b"), *flags)
    assert "preset" not in done.stderr


def test_exporting_a_run_says_nothing_of_resuming(tmp_path, caplog, capsys):
    run = train("vmas:simple_spread", "ippo", ON_POLICY, tmp_path / "run", 64)
    caplog.clear()
    run.export()
    assert "cannot be saved" not in caplog.text + capsys.readouterr().err
