"""Stable-Baselines3's PPO with RL Zoo's tuned CartPole-v1 hyper-parameters, until 20 greedy episodes reach 475 on average."""

from __future__ import annotations

import stable_baselines3
from measuring import Clock, report, set_torch_threads
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from work import EVALUATION_EPISODES, EVALUATION_INTERVAL, SOLVED_RETURN, Task, task_from_command_line


class UntilSolved(BaseCallback):
    """Evaluates between rollouts, where the policy is fresh from an update."""

    def __init__(self, task: Task, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._envs = make_vec_env(task.work.env, EVALUATION_EPISODES, seed=10_000 + task.seed)
        self._next_evaluation = EVALUATION_INTERVAL
        self.mean_return = 0.0
        self.seconds: float | None = None

    def _on_step(self) -> bool:
        return self.seconds is None

    def _on_rollout_start(self) -> None:
        if self.num_timesteps < self._next_evaluation or self.seconds is not None:
            return
        self._clock.tick(self.num_timesteps)
        self._next_evaluation += EVALUATION_INTERVAL
        self.mean_return, _ = evaluate_policy(
            self.model, self._envs, EVALUATION_EPISODES, deterministic=True, warn=False
        )
        if self.mean_return >= SOLVED_RETURN:
            self.seconds = self._clock.seconds_since_start()
            self._clock.tick(self.num_timesteps + 1)


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    set_torch_threads(task)
    model = stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env(task.work.env, task.work.num_envs, seed=task.seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        learning_rate=lambda left: left * 1e-3,
        gamma=0.98,
        gae_lambda=0.8,
        clip_range=lambda left: left * 0.2,
        ent_coef=0.0,
        seed=task.seed,
        device="cpu",
    )
    watch = UntilSolved(task, clock)
    model.learn(task.num_steps, callback=watch)
    details = {"num_env_steps": model.num_timesteps, "seconds_to_threshold": watch.seconds}
    report(stable_baselines3.__version__, clock.figures(), mean_return=watch.mean_return, **details)


if __name__ == "__main__":
    main()
