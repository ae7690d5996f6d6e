"""What a script or a notebook gives to a run as objects: environments, networks, heads, losses, signals, writers, schedules."""

import functools
import rlcompleter
import subprocess
import sys
import textwrap
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from torch import nn

import relayrl
from relayrl.errors import ConfigError, UntrustedError
from relayrl.extend import CategoricalHead, PolicyLoss, RewardSignal, StatisticsWriter

SMALL = {
    "evaluation.episodes": 0,
    "network.hidden_sizes": [8],
    "time_horizon": 16,
    "num_envs": 2,
    "tensorboard": False,
    "train_pi_iters": 2,
    "train_vf_iters": 2,
}


def train(env, path, steps=64, **more):
    settings = {**SMALL, **more.pop("settings", {})}
    return relayrl.train(env, steps=steps, seed=1, run_dir=path, settings=settings, progress=False, **more)


class Line(gymnasium.Env):
    """Walk right."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=4):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.place, self.time = self.place + int(action), self.time + 1
        done = self.place >= self.length
        return np.array([self.place / self.length, 0], np.float32), float(done), done, self.time >= 20, {}


def local_class():
    class Local(Line):
        pass

    return Local


class Maker:
    def __call__(self):
        return Line(5)


FACTORIES = {
    "class": Line,
    "local class": local_class(),
    "lambda": lambda: Line(3),
    "partial": functools.partial(Line, length=6),
    "callable object": Maker(),
}


@pytest.mark.parametrize("kind", FACTORIES)
def test_whatever_makes_environments_is_trained_in_evaluated_and_resumed(kind, tmp_path):
    run = train(FACTORIES[kind], tmp_path / "run")
    assert run.evaluate(episodes=2).num_ended == 2
    loaded = relayrl.load_run(tmp_path / "run", env=FACTORIES[kind])
    assert loaded.evaluate(episodes=2).num_ended == 2
    resumed = relayrl.train(FACTORIES[kind], run_dir=tmp_path / "run", resume=True, steps=128, progress=False)
    assert resumed.result.num_env_steps == 128


def test_workers_are_sent_what_they_cannot_import(tmp_path):
    from gymnasium.envs.classic_control import CartPoleEnv

    class Heavier(CartPoleEnv):
        masspole = 0.3

    run = train(lambda: Heavier(), tmp_path / "run", steps=32, settings={"workers": 1})
    assert run.result.num_env_steps == 32


def test_what_cannot_be_sent_says_what_to_do(tmp_path):
    import threading

    lock = threading.Lock()
    with pytest.raises(ConfigError, match="set workers to 0"):
        train(lambda: Line(3 if lock else 4), tmp_path / "run", settings={"workers": 1})


def test_an_environment_itself_is_refused_with_what_to_give(tmp_path):
    with pytest.raises(ConfigError, match="give what makes one"):
        train(Line(), tmp_path / "run")


def test_evaluation_in_another_environment(tmp_path):
    run = train(Line, tmp_path / "run")
    # Greedy or not, an episode of `n` cells takes at least n steps.
    assert run.evaluate(env=lambda: Line(15), episodes=2).mean_length >= 15
    assert run.evaluate(options={"length": 1}, episodes=1, stochastic=True).mean_length < 20
    with pytest.raises(ConfigError, match="was trained with"):
        run.evaluate(env="CartPole-v1", episodes=1)


def test_a_cell_that_is_run_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = train(Line, tmp_path / "run", steps=128)
    with pytest.raises(ConfigError, match="already holds a run"):
        train(Line, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    again = train(Line, tmp_path / "run", overwrite=True)
    assert (first.path, again.result.num_env_steps, again.history["num_env_steps"][-1]) == (again.path, 64, 64)
    assert (tmp_path / "run" / "notes.txt").exists()
    paths = {train(Line, None).path for _ in range(2)}
    assert len(paths) == 2
    with pytest.raises(ConfigError, match="overwrite=True replaces"):
        train(Line, tmp_path / "run", overwrite=True, resume=True)


class Wide(nn.Module):
    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__()
        self.layer = nn.Linear(encoder.num_features, num_outputs)
        nn.init.orthogonal_(self.layer.weight, output_gain, generator=generator)
        nn.init.zeros_(self.layer.bias)

    def forward(self, features):
        return self.layer(features)


class SharperHead(CategoricalHead):
    def log_prob(self, parameters, action):
        return 2.0 * super().log_prob(parameters, action)


class Halved(PolicyLoss):
    def __init__(self, params):
        self.clip_ratio = params.clip_ratio

    def loss(self, log_ratio, advantage):
        return -0.5 * (log_ratio.exp().clamp(1 - self.clip_ratio, 1 + self.clip_ratio) * advantage).mean()


class Bonus(RewardSignal):
    def evaluate(self, rollout):
        return np.ones_like(rollout.reward)


class Kept(StatisticsWriter):
    rows: ClassVar = []

    def __init__(self, path):
        pass

    def write(self, num_env_steps, row):
        self.rows.append(num_env_steps)


def plain_loss(log_ratio, advantage):
    return -(log_ratio.exp() * advantage).mean()


GIVEN = {
    "network.kernel": Wide,
    "network.head": SharperHead,
    "loss": Halved,
    "reward_signals": {Bonus: 0.5},
    "writers": [Kept],
    "schedules": {"pi_lr": lambda progress: 1e-3 * (1 - progress)},
}


def test_parts_are_used_named_in_the_config_and_found_again(tmp_path):
    Kept.rows.clear()
    plain, run = train(Line, tmp_path / "plain"), train(Line, tmp_path / "run", settings=GIVEN)
    here = Wide.__module__
    assert run.settings.network.kernel == f"{here}:Wide"
    assert run.settings.schedules == {"pi_lr": f"{here}:<lambda>"}
    assert set(run.settings.reward_signals) == {f"{here}:Bonus"}
    assert run.settings.reward_signals[f"{here}:Bonus"].strength == 0.5
    assert Kept.rows
    assert run.result.parameter_hash != plain.result.parameter_hash
    assert run.history["policy/learning_rate"][-1] == pytest.approx(0.5e-3, rel=0.6)
    assert run.export(tmp_path / "model.onnx")[0].exists()
    longer = relayrl.train(Line, run_dir=tmp_path / "run", resume=True, steps=128, settings=GIVEN, progress=False)
    assert longer.result.num_env_steps == 128


@pytest.mark.parametrize("part", [name for name in GIVEN if name != "writers"])
def test_every_part_changes_what_is_learned(part, tmp_path):
    hashes = [
        train(Line, tmp_path / str(i), settings=own).result.parameter_hash
        for i, own in enumerate(({}, {part: GIVEN[part]}))
    ]
    assert hashes[0] != hashes[1]


def test_a_loss_is_a_function_or_a_class(tmp_path):
    unclipped = train(Line, tmp_path / "function", settings={"loss": plain_loss, "clip_ratio": 0.2})
    wide = train(Line, tmp_path / "clip", settings={"clip_ratio": 1e6})
    # A clip that never binds is no clip; kernels and torch round differently.
    one, two = (run.policy.distribution(np.eye(2, dtype=np.float32)) for run in (unclipped, wide))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_a_schedule_of_what_cannot_change_is_refused_before_the_run_begins(tmp_path):
    with pytest.raises(ConfigError, match="may change during a run 'train_pi_iters'"):
        train(Line, tmp_path / "run", settings={"schedules": {"train_pi_iters": lambda progress: 3}})
    assert not (tmp_path / "run").exists()


def test_options_of_an_environment_stay_as_they_are():
    from relayrl.engines.given_parts import with_addresses

    given = {"environment.options": {"loss": plain_loss}, "environment.options.head": plain_loss, "params.gamma": 0.9}
    assert with_addresses(given) == given


def test_off_policy_algorithms_say_that_they_take_no_loss(tmp_path):
    with pytest.raises(ConfigError, match=r"takes no network.head and no loss"):
        relayrl.train(
            "Pendulum-v1", algo="sac", run_dir=tmp_path / "run", settings={"loss": plain_loss}, progress=False
        )


def test_a_file_that_names_code_needs_trust(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\ndef make(n):\n    return lambda e, o, g, r: nn.Linear(e.num_features, o)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = train("CartPole-v1", tmp_path / "run", settings={"network.kernel": "my_nets:make"})
    with pytest.raises(UntrustedError, match="my_nets:make"):
        relayrl.train(run_dir=run.path, resume=True, steps=128, progress=False)
    with pytest.raises(UntrustedError, match="my_nets:make"):
        relayrl.load_run(run.path).export(tmp_path / "a.onnx")
    assert relayrl.load_run(run.path, trust=True).export(tmp_path / "a.onnx")
    longer = relayrl.train(run_dir=run.path, resume=True, steps=128, progress=False, trust=True)
    assert longer.result.num_env_steps == 128
    with pytest.raises(ConfigError, match="cannot be imported"):
        train("CartPole-v1", tmp_path / "other", settings={"network.kernel": "my_nets:missing"})
    assert not (tmp_path / "other").exists()


SCRIPT = """
    import sys
    import gymnasium, numpy as np, relayrl

    class Mine(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.time = 0
            return np.zeros(1, np.float32), {}
        def step(self, action):
            self.time += 1
            return np.zeros(1, np.float32), float(action), self.time == 5, False, {}

    def linear(encoder, num_outputs, output_gain, generator):
        from torch import nn
        return nn.Linear(encoder.num_features, num_outputs)

    if __name__ == "__main__":
        settings = {"num_envs": 2, "workers": 1, "time_horizon": 16, "network.kernel": linear, "evaluation.episodes": 0}
        run = relayrl.train(Mine, steps=64, run_dir="run", progress=False, settings=settings)
        print(run.result.num_env_steps)
"""


def test_what_is_typed_in_works_with_workers_and_another_process_says_what_to_pass(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]  # as in a notebook, there is no file to import
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == "64", done.stderr
    with pytest.raises(ConfigError, match=r"load_run\(path, env=…\)"):
        relayrl.load_run(tmp_path / "run").evaluate(episodes=1)
    assert relayrl.load_run(tmp_path / "run").policy.act([0.0]) in (0, 1)
    with pytest.raises(ConfigError, match=r"load_run\(path, parts=\[…\]\)"):
        relayrl.load_run(tmp_path / "run", env=FACTORIES["lambda"]).export(tmp_path / "a.onnx")


@pytest.mark.parametrize("shape", ["dict", "image", "recurrent"])
def test_a_single_observation_is_acted_on(shape, tmp_path):
    spaces = {
        "dict": gymnasium.spaces.Dict({"a": gymnasium.spaces.Box(-1, 1, (3,)), "b": gymnasium.spaces.Discrete(4)}),
        "image": gymnasium.spaces.Box(0, 255, (24, 24, 3), np.uint8),
        "recurrent": gymnasium.spaces.Box(-1, 1, (3,), np.float32),
    }

    class Shown(Line):
        observation_space = spaces[shape]

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), *super().step(action)[1:]

    memory = {"network.memory.size": 4} if shape == "recurrent" else {}
    policy = train(Shown, tmp_path / "run", steps=32, settings=memory).policy
    seen = spaces[shape].sample()
    action = policy.act_remembering(seen, None)[0] if memory else policy.act(seen)
    assert np.shape(action) == ()
    assert int(action) in (0, 1)


def test_the_surface_is_what_completion_shows():
    from relayrl import extend

    assert {"train", "Callback", "load_run"} <= set(dir(relayrl))
    completer = rlcompleter.Completer({"relayrl": relayrl})  # what the interpreter's Tab key asks
    assert [name for name in completer.attr_matches("relayrl.tr") if name.startswith("relayrl.train(")]
    assert {"LiveRun", "PolicyLoss", "CategoricalHead"} <= set(dir(extend))
    assert not [name for name in dir(relayrl) if name.startswith("_") and name != "__version__"]


def test_a_single_observation_with_a_mask_is_acted_on(tmp_path):
    run = train("pettingzoo:classic.tictactoe_v3", tmp_path / "run", steps=64, settings={"num_envs": 2})
    policy = next(iter(run.policies.values()))
    only_four = np.arange(9) == 4
    seen = policy.metadata.observation_space.sample()
    assert policy.act(seen, only_four) == 4
