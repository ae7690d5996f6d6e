"""Stable-Baselines3's TD3, SAC and DDPG on Pendulum-v1."""

from __future__ import annotations

import stable_baselines3
from measuring import Clock, greedy_return, report, set_torch_threads
from stable_baselines3.common.callbacks import BaseCallback
from work import GAMMA, OFF_POLICY_LEARNING_RATE, REPLAY_SIZE, OffPolicyWork, task_from_command_line

CLASSES = {"W5-td3": stable_baselines3.TD3, "W5-sac": stable_baselines3.SAC, "W5-ddpg": stable_baselines3.DDPG}


class TickAfterSteps(BaseCallback):
    """Every step after the warm-up comes with a gradient step."""

    def __init__(self, clock: Clock, steps_before: int) -> None:
        super().__init__()
        self._clock, self._steps_before = clock, steps_before

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._steps_before:
            self._clock.tick(self.num_timesteps)
        return True


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    set_torch_threads(task)
    work = task.work
    assert isinstance(work, OffPolicyWork)
    model = CLASSES[task.work_name](
        "MlpPolicy",
        work.env,
        learning_starts=work.learning_starts,
        train_freq=1,
        gradient_steps=1,
        batch_size=work.batch_size,
        buffer_size=REPLAY_SIZE,
        learning_rate=OFF_POLICY_LEARNING_RATE,
        gamma=GAMMA,
        policy_kwargs={"net_arch": [work.width, work.width]},
        seed=task.seed,
        device="cpu",
    )
    model.learn(task.num_steps, callback=TickAfterSteps(clock, work.steps_before_clock))
    figures = clock.figures()
    mean_return = greedy_return(work.env, lambda o: model.predict(o, deterministic=True)[0])
    report(stable_baselines3.__version__, figures, mean_return=mean_return, return_kind="greedy")


if __name__ == "__main__":
    main()
