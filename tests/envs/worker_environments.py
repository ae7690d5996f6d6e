"""Environments for the tests of vectorisers and workers, beside those of `relayrl.testing`; importable in workers."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.envs.environment_contract import (
    MultiAgentEnvironment,
    MultiAgentReset,
    MultiAgentStep,
    ScalarEnvironment,
    ScalarReset,
    ScalarStep,
)

HANG_S = 3600.0


class Dice(ScalarEnvironment):
    """Draws its observations and rewards from its seeded stream; an episode ends with probability `end`."""

    def __init__(self, *, end: float = 0.2, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32) if continuous else spaces.Discrete(4)
        self._end = end
        self._random = np.random.default_rng()

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        terminated, truncated = (self._random.random(2) < self._end / 2).tolist()
        return ScalarStep(self.build_observation(), self._random.normal() + np.sum(action), terminated, truncated, {})

    def build_observation(self) -> Any:
        return self._random.random(3, np.float32)


class Trouble(ScalarEnvironment):
    """Observes the step within its episode of ten; in step `at` of its life it makes trouble of the kind `how`.

    With `seeds`, only environments whose last seed is one of them do.
    """

    def __init__(self, *, how: str, at: int = 3, seeds: Sequence[int] | None = None) -> None:
        self.observation_space = spaces.Box(0.0, 10.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._how, self._at, self._seeds = how, at, seeds
        self._is_due = seeds is None
        self._life = self._step = 0
        if how == "raise_in_init" and at == 0:
            raise RuntimeError("cannot be built")
        if how == "exit_in_init":
            sys.exit(3)

    def reset(self, *, seed: int | None = None) -> ScalarReset:
        if seed is not None and self._seeds is not None:
            self._is_due = seed in self._seeds
        self._step = 0
        if self._how == "exit_in_reset":
            sys.exit(3)
        if self._how == "raise_in_reset" and self._life >= self._at and self._is_due:
            raise RuntimeError("cannot be reset")
        return ScalarReset(self.build_observation(), {})

    def step(self, action: Any) -> ScalarStep:
        self._life += 1
        self._step += 1
        result = ScalarStep(self.build_observation(), 1.0, self._step == 10, False, {})
        return self._make_trouble(result) if self._life == self._at and self._is_due else result

    def build_observation(self) -> Any:
        return np.full(2, self._step, np.float32)

    def close(self) -> None:
        match self._how:
            case "hang_in_close":
                time.sleep(HANG_S)
            case "segfault_in_close":
                ctypes.string_at(0)
            case "exit_in_close":
                sys.exit(3)

    def _make_trouble(self, result: ScalarStep) -> ScalarStep:
        match self._how:
            case "raise":
                raise RuntimeError("as asked")
            case "hang":
                time.sleep(HANG_S)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(7)
            case "sys_exit":
                sys.exit(0)
            case "keyboard_interrupt":
                raise KeyboardInterrupt
            case "segfault":
                ctypes.string_at(0)
            case "leave_child":
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], close_fds=False)
                os._exit(9)
            case "nan":
                return result._replace(observation=np.array([0.0, np.nan], np.float32))
            case "outside":
                return result._replace(observation=np.array([0.0, 11.0], np.float32))
            case "wrong_shape":
                return result._replace(observation=np.zeros(3, np.float32))
            case "wrong_reward":
                return result._replace(reward=None)  # type: ignore[arg-type]
        return result


class Mortal(Dice):
    """Ends its process in its first step, and cannot be built again after that."""

    def __init__(self, *, grave: str) -> None:
        super().__init__()
        self._grave = Path(grave)
        if self._grave.exists():
            raise RuntimeError("gone for good")

    def step(self, action: Any) -> ScalarStep:
        self._grave.touch()
        os._exit(4)


class Masked(gymnasium.Env[Any, Any]):
    """Allows only action `step % 3`, and says so in `info`; episodes of four steps."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return 0, self._info()

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._step, 0.0, False, self._step == 4, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.arange(3) == self._step % 3}


class Relay(MultiAgentEnvironment):
    """Two runners and a coach. Runners act in turns, `runner_0` first; the coach joins after step 1 and acts in each step.

    `runner_0` terminates in step 3, `runner_1` is truncated in step 4, the coach leaves without a flag in step 4. In each
    step, everyone in the environment is rewarded with the number of the step.
    """

    possible_agents = ("runner_0", "runner_1", "coach")

    def __init__(self) -> None:
        track, view = spaces.Box(0.0, 9.0, (1,), np.float32), spaces.Box(0.0, 9.0, (2,), np.float32)
        self.observation_spaces = {"runner_0": track, "runner_1": track, "coach": view}
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(2))
        self._step = 0
        self.taken: list[dict[str, int]] = []

    @property
    def agents(self) -> Sequence[str]:
        return {0: self.possible_agents[:2], 3: self.possible_agents[1:], 4: ()}.get(self._step, self.possible_agents)

    def acting_agents(self) -> Sequence[str]:
        runner = "runner_1" if self._step == 3 else f"runner_{self._step % 2}"
        return (runner,) if self._step == 0 else (runner, "coach")

    @property
    def masks_actions(self) -> bool:
        return True

    def action_masks(self) -> Mapping[str, Any]:
        return {agent: np.array([True, self._step != 1]) for agent in self.acting_agents()}

    @property
    def state_space(self) -> spaces.Space[Any]:
        return spaces.Discrete(10)

    def state(self) -> Any:
        return np.array(self._step)

    def reset(self, *, seed: int | None = None) -> MultiAgentReset:
        self._step = 0
        return MultiAgentReset({"runner_0": np.zeros(1, np.float32)}, {})

    def step(self, actions: Mapping[str, Any]) -> MultiAgentStep:
        self.taken.append({agent: int(action) for agent, action in actions.items()})
        before = set(self.agents)
        self._step += 1
        observations = {
            agent: np.full(2 if agent == "coach" else 1, self._step, np.float32) for agent in self.acting_agents()
        } | {agent: np.full(1, self._step, np.float32) for agent in before if agent.startswith("runner")}
        return MultiAgentStep(
            observations,
            dict.fromkeys(before, float(self._step)),
            {"runner_0": self._step >= 3},
            {"runner_1": self._step == 4},
            {},
        )

    def build_observation(self) -> Any:
        return self._step


def imports_torch() -> ScalarEnvironment:
    """Refuses to be built where torch is imported."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported here")
    return Dice()
