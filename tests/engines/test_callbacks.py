"""Callbacks: what they see, that reading changes no bit, and that a run with them stops, fails and resumes whole."""

import subprocess
import sys
import textwrap
import traceback

import numpy as np
import pytest

import relayrl
from relayrl.errors import ConfigError, UnknownNameError

SMALL = {"evaluation.episodes": 0, "network.hidden_sizes": [8], "time_horizon": 16, "num_envs": 4, "tensorboard": False}
PPO = SMALL | {"train_pi_iters": 2, "train_vf_iters": 3, "checkpoint_interval": 10_000, "summary_freq": 128}
SAC = SMALL | {"learning_starts": 40, "batch_size": 16}


def train(tmp_path, name, env="CartPole-v1", algo="ppo", steps=256, **more):
    settings = {**(PPO if "ppo" in algo else SAC), **more.pop("settings", {})}
    return relayrl.train(
        env, algo=algo, steps=steps, seed=3, run_dir=tmp_path / name, settings=settings, progress=False, **more
    )


class Reader(relayrl.Callback):
    """Reads all there is, and keeps what it was called with."""

    def __init__(self):
        self.calls = []

    def on_start(self, run):
        self.calls.append(("start", run.num_env_steps))

    def on_rollout(self, run):
        for name, rollout in run.rollouts.items():
            self.calls.append(("rollout", run.num_env_steps, rollout.reward.shape))
            if run.policies[name].head.mask_width is None or rollout.action_mask is None:
                run.policies[name].act(
                    next(iter(rollout.obs.values()))[0] if isinstance(rollout.obs, dict) else rollout.obs[0]
                )

    def on_update(self, run):
        numbers = [float(p.detach().square().sum()) for module in run.modules.values() for p in module.parameters()]
        assert np.isfinite(numbers).all()
        assert all(np.isfinite(value) for value in run.metrics.values())
        self.calls.append(("update", run.num_env_steps))

    def on_evaluation(self, run):
        self.calls.append(("evaluation", run.num_env_steps, run.metrics["evaluation/return_mean"]))

    def on_checkpoint(self, run):
        self.calls.append(("checkpoint", run.checkpoint.name))

    def on_end(self, run):
        self.calls.append(("end", run.result is not None))


def test_methods_are_called_in_order_with_the_steps_of_that_moment(tmp_path):
    reader = Reader()
    often = {"evaluation.interval": 128, "evaluation.interval_episodes": 1}
    run = train(tmp_path, "run", steps=128, callbacks=[reader], settings=often)
    evaluated = run.history["evaluation/return_mean"][-1]
    assert reader.calls == [
        ("start", 0),
        ("checkpoint", "step_000000000000.ckpt"),
        ("rollout", 0, (16, 4)),
        ("update", 64),
        ("rollout", 64, (16, 4)),
        ("update", 128),
        ("evaluation", 128, evaluated),
        ("checkpoint", "step_000000000128.ckpt"),
        ("end", True),
    ]


@pytest.mark.parametrize(
    ("env", "algo"), [("CartPole-v1", "ppo"), ("Pendulum-v1", "sac"), ("native:simple_adversary", "mappo")]
)
def test_reading_changes_no_bit(env, algo, tmp_path):
    hashes = [
        train(tmp_path, str(i), env, algo, callbacks=own).result.parameter_hash
        for i, own in enumerate(([], [Reader()]))
    ]
    assert hashes[0] == hashes[1]


def test_logged_numbers_are_means_of_their_row(tmp_path):
    run = train(tmp_path, "run", callbacks=[lambda run: run.log("mine/steps", run.num_env_steps)])
    assert run.history["mine/steps"][-1] == (192 + 256) / 2


def test_a_threaded_run_calls_with_every_update(tmp_path):
    reader = Reader()
    train(tmp_path, "run", callbacks=[reader], settings={"trainer.threaded": True})
    steps = [call[1] for call in reader.calls if call[0] == "update"]
    assert steps == [64, 128, 192, 256]


def test_records_are_learned_from_with_callbacks(tmp_path):
    record = f"arrow:{tmp_path / 'record'}"
    train(tmp_path, "play", "Pendulum-v1", "sac", settings={"record": record})
    reader = Reader()
    train(tmp_path, "learn", "Pendulum-v1", "sac", callbacks=[reader], settings={"learn_from": record})
    kinds = [call[0] for call in reader.calls]
    assert kinds.count("update") > 3
    assert "rollout" not in kinds


def test_stop_ends_a_run_as_if_it_had_all_its_steps_and_resume_goes_on(tmp_path):
    run = train(tmp_path, "run", callbacks=[lambda run: run.num_env_steps >= 128 and run.stop()])
    assert run.result.num_env_steps == 128
    assert run.history["num_env_steps"][-1] == 128
    assert run.policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False)
    assert resumed.result.num_env_steps == 256
    assert resumed.result.parameter_hash == train(tmp_path, "whole").result.parameter_hash


class Decay(relayrl.Callback):
    """Lowers rates and clipping by what it counted itself, and may break."""

    def __init__(self, breaks_at=None, where="on_update"):
        self.count, self.breaks_at, self.where = 0, breaks_at, where

    def on_rollout(self, run):
        if self.where == "on_rollout" and self.count == self.breaks_at:
            raise ZeroDivisionError("broken")

    def on_update(self, run):
        self.count += 1
        for name in {"pi_lr", "vf_lr", "clip_ratio", "actor_lr", "critic_lr", "exploration_noise"} & set(run.params):
            run.params[name] *= 0.5
        if self.where == "on_update" and self.count == self.breaks_at:
            raise ZeroDivisionError("broken")

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize(
    ("env", "algo", "where"),
    [
        ("CartPole-v1", "ppo", "on_update"),
        ("CartPole-v1", "ppo", "on_rollout"),
        ("Pendulum-v1", "td3", "on_update"),
        ("native:simple_adversary", "ippo", "on_update"),
    ],
)
def test_a_callback_that_raises_leaves_a_run_that_resumes_bit_for_bit(env, algo, where, tmp_path):
    whole = train(tmp_path, "whole", env, algo, callbacks=[Decay()])
    plain = train(tmp_path, "plain", env, algo)
    with pytest.raises(ZeroDivisionError, match="broken") as caught:
        train(tmp_path, "run", env, algo, callbacks=[Decay(breaks_at=2, where=where)])
    assert "in on_" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert "ZeroDivisionError: broken" in (tmp_path / "run" / "run.log").read_text()
    decay = Decay()
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False, callbacks=[decay])
    assert decay.count > 2
    assert resumed.result.parameter_hash == whole.result.parameter_hash
    assert resumed.result.parameter_hash != plain.result.parameter_hash


def test_what_a_threaded_callback_raises_is_raised_with_the_state_saved(tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, "run", callbacks=[Decay(breaks_at=2)], settings={"trainer.threaded": True})
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, progress=False, callbacks=[Decay()])
    assert resumed.result.num_env_steps == 256


def test_whoever_resumes_without_the_callbacks_is_told_to_pass_them(tmp_path, caplog):
    train(tmp_path, "run", callbacks=[Decay()])
    relayrl.train(run_dir=tmp_path / "run", resume=True, steps=320, progress=False)
    assert "goes on without: Decay; pass them again" in caplog.text


def test_every_on_end_is_called_after_a_failure(tmp_path):
    reader = Reader()
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, "run", callbacks=[Decay(breaks_at=1), reader])
    assert reader.calls[-1] == ("end", False)


def test_live_params_take_what_the_settings_take(tmp_path):
    seen = {}

    def look(run):
        seen.update(run.params)
        run.params["entropy_coef"] = 0.5
        with pytest.raises(ConfigError, match="pi_lr"):
            run.params["pi_lr"] = -1.0
        with pytest.raises(UnknownNameError, match="did you mean 'clip_ratio'"):
            run.params["clip_ration"] = 0.1
        assert run.params["entropy_coef"] == 0.5

    train(tmp_path, "run", steps=64, callbacks=[look])
    assert seen["clip_ratio"] == 0.2


def test_groups_have_params_of_their_own(tmp_path):
    def split(run):
        run.params.of("adversary_0")["pi_lr"] = 1e-5
        with pytest.raises(ConfigError, match=r"run.params.of\(group\)"):
            run.params["pi_lr"]

    run = train(tmp_path, "run", "native:simple_adversary", "ippo", callbacks=[split])
    assert run.history["adversary_0/policy/learning_rate"][-1] == pytest.approx(1e-5, rel=0.2)


@pytest.mark.parametrize(
    ("wrong", "match"), [(Reader, "give an object of it"), (3, "or functions of the live run, not 3")]
)
def test_what_is_no_callback_is_refused_before_anything_is_made(wrong, match, tmp_path):
    with pytest.raises(ConfigError, match=match):
        train(tmp_path, "run", callbacks=[wrong])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), [("nothing", 1.0), ("mine/x", float("nan")), (3, 1.0)])
def test_log_refuses_what_no_row_can_hold(name, value, tmp_path):
    with pytest.raises(ConfigError):
        train(tmp_path, "run", steps=64, callbacks=[lambda run: run.log(name, value)])


KILLED = """
    import os, signal, sys
    import relayrl

    class Decay(relayrl.Callback):
        count = 0
        def on_update(self, run):
            self.count += 1
            run.params["pi_lr"] *= 0.7
            run.log("mine/count", self.count)
            if sys.argv[1] == "killed" and self.count == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        def state_dict(self):
            return {"count": self.count}
        def load_state_dict(self, state):
            self.count = state["count"]

    if __name__ == "__main__":
        settings = {
            "num_envs": 4, "workers": 2, "time_horizon": 16, "record": f"arrow:{sys.argv[2]}-record", "evaluation.episodes": 0,
            "checkpoint_interval": 128, "summary_freq": 64, "train_pi_iters": 2, "train_vf_iters": 2,
        }
        env = "MountainCarContinuous-v0"
        begin = {"run_dir": sys.argv[2], "callbacks": [Decay()], "progress": False}
        if sys.argv[1] == "resumed":
            run = relayrl.train(resume=True, **begin)
        else:
            run = relayrl.train(env, steps=512, seed=2, settings=settings, **begin)
        print(run.result.parameter_hash, run.history["mine/count"])
"""


@pytest.mark.slow
def test_a_killed_run_with_a_callback_workers_and_a_record_goes_on_as_if_it_had_not_been(tmp_path):
    def played(how, name):
        (tmp_path / "script.py").write_text(textwrap.dedent(KILLED))
        command = [sys.executable, "script.py", how, name]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    whole, killed, resumed = played("whole", "a"), played("killed", "b"), played("resumed", "b")
    assert killed.returncode == -9
    assert whole.stdout, whole.stderr
    assert resumed.stdout == whole.stdout, resumed.stderr
