"""Whole runs of DDPG, TD3 and SAC in an environment that pays only at the end, and the same runs with nothing carried back."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.engines.local.local_engine import LocalEngine
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.envs.environment_contract import ScalarEnvironment, ScalarReset, ScalarStep


class Homecoming(ScalarEnvironment):
    """A point at 0.5 to 1 on either side of home moves by at most 0.2 a step for six steps; then it pays its distance squared.

    Nothing is paid before, and the last step goes the other way round: what is right at the end, the only thing that rewards
    alone can teach, is wrong before it. Standing still is worth −0.58 on average, the best play 0.
    """

    NUM_STEPS, STRIDE = 6, 0.2

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-3.0, 3.0, (2,), np.float32)
        self.action_space = spaces.Box(-4.0, 4.0, (1,), np.float32)
        self._random = np.random.default_rng()
        self._position, self._num_steps = 0.0, 0

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._position = float(self._random.choice([-1.0, 1.0]) * self._random.uniform(0.5, 1.0))
        self._num_steps = 0
        return ScalarReset(self.build_observation(), {})

    def step(self, action: np.ndarray) -> ScalarStep:
        self._num_steps += 1
        is_over = self._num_steps == self.NUM_STEPS
        self._position += self.STRIDE * float(action[0]) / (-4.0 if is_over else 4.0)
        return ScalarStep(self.build_observation(), -(self._position**2) * is_over, is_over, False, {})

    def build_observation(self) -> np.ndarray:
        return np.array([self._position, self._num_steps / self.NUM_STEPS], np.float32)


THRESHOLD = -0.2
NUM_STEPS = 2_400
SETTINGS = {
    "environment.num_envs": 2,
    "network.hidden_sizes": (32, 32),
    "network.activation": "relu",
    "trainer.max_steps": NUM_STEPS,
    "trainer.summary_freq": NUM_STEPS,
    "evaluation.episodes": 40,
    "params.learning_starts": 300,
    "params.batch_size": 64,
    "params.buffer_size": NUM_STEPS,
    "params.actor_lr": 1e-3,
    "params.critic_lr": 3e-3,
    "params.tau": 0.02,
    "params.update_interval": 2,
    "params.train_iters": 1,
}
OWN_SETTINGS = {
    "ddpg": {"params.noise_scale": 0.3},
    "td3": {"params.exploration_noise": 0.3},
    "sac": {"params.init_temperature": 0.05, "params.temperature_lr": 3e-3},
}


def mean_return(algo: str, path: Path, **changes) -> float:
    flags = SETTINGS | OWN_SETTINGS[algo] | {"algo": algo} | {f"params.{name}": v for name, v in changes.items()}
    settings = build_run_settings("test_off_policy_learning:Homecoming", None, flags, [])
    directory = RunDirectory(path / "run")
    directory.create(settings)
    return LocalEngine(settings, directory, tensorboard=False).run(lambda _: None).mean_return


@pytest.mark.slow
@pytest.mark.parametrize("algo", OWN_SETTINGS)
def test_the_way_home_is_learned_from_its_end(algo, tmp_path):
    assert mean_return(algo, tmp_path) >= THRESHOLD


@pytest.mark.slow
@pytest.mark.parametrize("algo", OWN_SETTINGS)
def test_with_nothing_carried_back_it_is_missed(algo, tmp_path):
    assert mean_return(algo, tmp_path, gamma=0.0) < THRESHOLD


@pytest.mark.slow
def test_longer_returns_and_priorities_learn_it_too(tmp_path):
    assert mean_return("td3", tmp_path, num_step_returns=3, priority_exponent=0.6) >= THRESHOLD
