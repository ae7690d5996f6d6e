"""The work that everybody does, and what we ask of ourselves beside each peer.

Free of third parties: it is imported in every peer's virtual environment. A `Task` is one run of one work, as the harness hands
it to a worker; hyper-parameters that all share are CleanRL's for PPO.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

LEARNING_RATE, GAMMA, GAE_LAMBDA, CLIP, ENTROPY, VALUE, MAX_GRAD_NORM, ADAM_EPSILON = (
    2.5e-4,
    0.99,
    0.95,
    0.2,
    0.01,
    0.5,
    0.5,
    1e-5,
)
OFF_POLICY_LEARNING_RATE, REPLAY_SIZE = 1e-3, 100_000
NUM_AGENTS = 3
MPE_CYCLES, VMAS_STEPS = 25, 100
SOLVED_RETURN, EVALUATION_INTERVAL, EVALUATION_EPISODES = 475.0, 2560, 20


@dataclass(frozen=True)
class PpoWork:
    """Rollouts of `num_envs` × `rollout` steps, `epochs` passes of `minibatches` each, `depth` layers of `width` tanh units."""

    title: str
    env: str
    num_envs: int
    rollout: int
    num_steps: int
    epochs: int = 4
    minibatches: int = 4
    width: int = 64
    depth: int = 2

    @property
    def layers(self) -> tuple[int, ...]:
        return (self.width,) * self.depth

    @property
    def batch(self) -> int:
        return self.num_envs * self.rollout

    @property
    def minibatch(self) -> int:
        return self.batch // self.minibatches

    @property
    def steps_before_clock(self) -> int:
        """Environment steps that are not timed: one rollout and its update."""
        return self.batch


@dataclass(frozen=True)
class OffPolicyWork:
    """One environment, one gradient step per environment step."""

    title: str
    env: str
    num_steps: int
    num_envs: int = 1
    learning_starts: int = 1000
    batch_size: int = 256
    width: int = 256

    @property
    def steps_before_clock(self) -> int:
        """Random steps, and 50 with gradient steps."""
        return self.learning_starts + 50


@dataclass(frozen=True)
class ThresholdWork:
    """Train until 20 greedy episodes reach 475 on average; `num_steps` is where one gives up."""

    title: str
    env: str
    num_steps: int
    num_envs: int = 8
    steps_before_clock: int = 0


Work = PpoWork | OffPolicyWork | ThresholdWork

_SHAPE = "4 epochs × 4 minibatches, 2×64 tanh"
WORKS: dict[str, Work] = {
    "W1": PpoWork(f"PPO CartPole-v1, 8 environments × 128 steps, {_SHAPE}", "CartPole-v1", 8, 128, 100 * 1024),
    "W2": PpoWork(f"PPO CartPole-v1, 64 environments × 128 steps, {_SHAPE}", "CartPole-v1", 64, 128, 25 * 8192),
    "W2k": PpoWork(f"PPO CartPole, 1,024 environments × 32 steps, {_SHAPE}", "CartPole-v1", 1024, 32, 32 * 32768),
    "W3": ThresholdWork("PPO CartPole-v1 to 475 evaluated, from process start", "CartPole-v1", 100_000),
    "W4a": PpoWork("PPO simple_spread (mpe2, discrete), 8 environments × 128", "simple_spread", 8, 128, 20 * 1024),
    "W4b": PpoWork("PPO simple_spread (VMAS, continuous), 64 environments × 128", "simple_spread", 64, 128, 16 * 8192),
    "W4c": PpoWork(
        "PPO simple_spread (native, continuous), 64 environments × 128", "simple_spread", 64, 128, 16 * 8192
    ),
    "W5-td3": OffPolicyWork("TD3 Pendulum-v1, batch 256, 2×256, a gradient step per step", "Pendulum-v1", 4000),
    "W5-sac": OffPolicyWork("SAC Pendulum-v1, batch 256, 2×256, a gradient step per step", "Pendulum-v1", 4000),
    "W5-ddpg": OffPolicyWork("DDPG Pendulum-v1, batch 256, 2×256, a gradient step per step", "Pendulum-v1", 4000),
    "W6a": PpoWork("PPO Acrobot-v1, 8 × 128 as W1, 3×256 tanh", "Acrobot-v1", 8, 128, 40 * 1024, width=256, depth=3),
    "W6b": PpoWork("PPO Acrobot-v1, 8 × 128 as W1, 3×512 tanh", "Acrobot-v1", 8, 128, 20 * 1024, width=512, depth=3),
}
QUICK_SHARE = 4
"""`--quick` does a fourth of the steps, and at least two updates."""


@dataclass(frozen=True)
class Task:
    """One run: a work by name, the variant of whoever does it, and what differs between repetitions."""

    work_name: str
    variant: str
    threads: int
    seed: int
    quick: bool = False
    runners: int = 0
    """Processes of Ray that step the environments, RLlib's env runners or our collectors; 0: none."""

    @property
    def work(self) -> Work:
        return WORKS[self.work_name]

    @property
    def ppo(self) -> PpoWork:
        """The work, where it is one of PPO's."""
        if not isinstance(self.work, PpoWork):
            raise TypeError(f"{self.work_name} is no work of PPO")
        return self.work

    @property
    def num_steps(self) -> int:
        """Environment steps of the run: whole rollouts."""
        work = self.work
        if isinstance(work, ThresholdWork) or not self.quick:
            return work.num_steps
        if isinstance(work, OffPolicyWork):
            return work.steps_before_clock + (work.num_steps - work.steps_before_clock) // QUICK_SHARE
        return max(2, work.num_steps // work.batch // QUICK_SHARE) * work.batch

    def to_json(self) -> str:
        """Without what nobody asked for: workers of earlier versions do not know it."""
        return json.dumps({name: value for name, value in asdict(self).items() if value or name != "runners"})


def task_from_command_line() -> Task:
    """The task that the harness gave this worker."""
    return Task(**json.loads(sys.argv[1]))
