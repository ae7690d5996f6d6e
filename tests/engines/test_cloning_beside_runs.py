"""`behavioral_cloning` beside reinforcement learning, and `gail` beside its neighbours, from outside."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

import relayrl
from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.errors import ConfigError
from relayrl.models.heads.head_registry import squashed_head
from relayrl.training.imitation.imitation_settings import BehavioralCloningSettings
from waiting import wait_until

SMALL = {"hidden_sizes": [16], "evaluation.episodes": 2, "statistics.tensorboard": False}
MASKED, MASKS = "relayrl.testing:FollowSignal", {"environment.options": {"masks": True}}
PPO = {"time_horizon": 16, "train_pi_iters": 1, "train_vf_iters": 1}
SAC = {"learning_starts": 16, "batch_size": 8, "update_interval": 4, "train_iters": 1, "buffer_size": 500}


def test_the_rate_falls_linearly_to_nothing_or_stays():
    falling = BehavioralCloningSettings(demo_path="x", steps=200)
    assert [falling.factor(n) for n in (0, 50, 200, 900)] == [1.0, 0.75, 0.0, 0.0]
    assert BehavioralCloningSettings(demo_path="x").factor(10**9) == 1.0


def test_the_likelihood_of_a_squashed_normal_is_the_one_it_draws_with():
    head = squashed_head(spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)))
    parameters = torch.tensor([[0.3, -0.2, -1.0, 0.1]]).repeat(5, 1)
    action, logp = head.rsample(parameters, torch.linspace(-1.5, 1.5, 10).reshape(5, 2))
    stored = action * torch.from_numpy(head.half_range) + torch.from_numpy(head.center)
    torch.testing.assert_close(head.log_prob(parameters, stored), logp, rtol=1e-4, atol=1e-4)
    assert torch.isfinite(head.log_prob(parameters, torch.tensor([[2.0, 0.0]]).repeat(5, 1))).all()  # at the bounds


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Records of what untrained policies do, by environment."""
    folder, urls = tmp_path_factory.mktemp("demos"), {}
    for name, env in {"pendulum": "native:Pendulum", "tag": "native:simple_tag", "cart": "native:CartPole"}.items():
        urls[name] = f"arrow:{folder}/{name}"
        given = {"steps": 256, "num_envs": 2, "run_dir": folder / f"run-{name}", "progress": False}
        relayrl.train(env, algo="ppo", settings=SMALL | PPO | {"record": urls[name]}, **given)
    return urls


def trained(env, algo, path, *, steps=256, **settings):
    given = {"algo": algo, "steps": steps, "num_envs": 2, "progress": False, "run_dir": path}
    return relayrl.train(env, settings=SMALL | (SAC if algo == "sac" else PPO) | settings, **given)


@pytest.mark.parametrize(
    ("env", "algo", "name"),
    [
        ("native:CartPole", "ppo", "cart"),
        ("native:simple_tag", "poca", "tag"),
        ("native:Pendulum", "sac", "pendulum"),
        ("native:CartPole", "sac", "cart"),
        ("native:simple_tag", "mappo", "tag"),
        ("native:Pendulum", "appo", "pendulum"),
    ],
)
def test_policies_are_cloned_while_they_learn(env, algo, name, demos, tmp_path):
    cloning = {"demo_path": demos[name], "steps": 200, "batch_size": 64, "samples_per_update": 64}
    run = trained(env, algo, tmp_path / "run", behavioral_cloning=cloning, summary_freq=1)
    rates = [name for name in run.history if name.endswith("cloning/learning_rate")]
    assert len(rates) == len(run.policies)
    for rate in rates:
        known = np.array(run.history[rate])
        known = known[np.isfinite(known)]
        assert known[0] > known[len(known) // 2] > known[-1] == 0.0
        losses = np.array(run.history[rate.replace("learning_rate", "loss")])
        assert np.isfinite(losses).any()


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_cloning_has_moments_of_its_own(algo, demos, tmp_path):
    """Pretraining alone steps the policy, and not the moments of the algorithm's Adam."""
    cloning = {"demo_path": demos["pendulum"], "pretrain_epochs": 3, "batch_size": 64}
    flags = {"algo": algo, "environment.num_envs": 2, "network.hidden_sizes": [16], "behavioral_cloning": cloning}
    directory = RunDirectory(tmp_path / "run")
    settings = build_run_settings("native:Pendulum", None, flags, [])
    directory.create(settings)
    parts = LocalEngine(settings, directory, tensorboard=False)._parts
    own = parts.trainer.cloned_policies()["agent"].optimizer
    before = own.vector.clone()
    parts.trainer.cloning.pretrain()
    assert not torch.equal(own.vector, before)
    assert not own.first_moment.any()
    assert not own.second_moment.any()
    assert own.num_steps == 0


def test_deterministic_policies_have_no_likelihood(demos, tmp_path):
    settings = SMALL | {"behavioral_cloning": {"demo_path": demos["pendulum"]}}
    with pytest.raises(ConfigError, match="no likelihoods, which cloning needs; use ppo, poca or sac"):
        relayrl.train("native:Pendulum", algo="td3", run_dir=tmp_path / "run", settings=settings, progress=False)


def test_pretraining_clones_before_the_first_step(tmp_path):
    """Of a policy that goes right only; the run's first episodes do so too."""
    script = tmp_path / "keys.txt"
    script.write_text("right\n" * 400)
    from relayrl.engines.demos.demo_recording import demo_env, record_keys
    from relayrl.engines.demos.key_actor import ScriptedKeys

    env, url = demo_env("native:CartPole", {}), f"arrow:{tmp_path}/demos"
    record_keys(env, ScriptedKeys.from_file(script), url, key_map=None, episodes=20, seed=0)
    env.close()
    cloning = {"demo_path": url, "pretrain_epochs": 60, "batch_size": 32, "steps": 1, "strength": 10.0}
    record = f"arrow:{tmp_path}/records"
    options = {"behavioral_cloning": cloning, "record": record, "normalize_observations": True}
    trained("native:CartPole", "ppo", tmp_path / "run", steps=64, **options)
    with relayrl.open_source(record) as source:
        actions = np.concatenate([each.action for each in source])
    assert actions.mean() > 0.9


def resumed_hash(env, algo, path, settings, steps):
    given = {"algo": algo, "num_envs": 2, "progress": False, "run_dir": path}
    resume = {"resume": True} if (path / "checkpoints").exists() else {}
    values = settings | {"trainer.max_steps": steps}
    return relayrl.train(env, settings=values, **given, **resume).result.parameter_hash


@pytest.mark.parametrize(
    ("env", "algo", "name", "workers"),
    [
        ("native:simple_tag", "ppo", "tag", 0),
        (MASKED, "ppo", None, 1),
        ("native:Pendulum", "sac", "pendulum", 0),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(env, algo, name, workers, demos, tmp_path):
    """gail with a bottleneck, rnd, and cloning together: two groups, masks in worker processes, and replay."""
    url = demos[name] if name else masked_demos(tmp_path)
    network = {"network": {"hidden_sizes": [8]}}
    signals = {
        "gail": {
            "strength": 0.3,
            "options": {"demo_path": url, "use_vail": True, "use_actions": True, "bottleneck_size": 4} | network,
        },
        "rnd": {"strength": 0.1, "options": network},
        "extrinsic": {"strength": 0.5},
    }
    settings = SMALL | (SAC if algo == "sac" else PPO) | {"reward_signals": signals, "checkpoint_interval": 64}
    settings |= {"behavioral_cloning": {"demo_path": url, "batch_size": 24, "num_epoch": 1, "pretrain_epochs": 1}}
    settings |= {"environment.workers": workers, "keep_checkpoints": 1000} | (MASKS if env == MASKED else {})
    given = {"algo": algo, "num_envs": 2, "progress": False, "run_dir": str(tmp_path / "killed"), "steps": 200_000}
    program = f"import relayrl; relayrl.train({env!r}, **{given | {'settings': settings}!r})"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(lambda: len(list((tmp_path / "killed" / "checkpoints").glob("step_*.ckpt"))) > 2)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
    newest = max((tmp_path / "killed" / "checkpoints").glob("step_*.ckpt"))
    stop = int(newest.stem.removeprefix("step_")) + 128
    killed, whole = (resumed_hash(env, algo, tmp_path / name, settings, stop) for name in ("killed", "whole"))
    assert killed == whole


def masked_demos(folder):
    url = f"sqlite:{folder}/masked.db"
    trained(MASKED, "ppo", folder / "masked", record=url, **MASKS)
    return url
