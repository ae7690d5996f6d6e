"""Sample Factory's APPO on CartPole-v1. Variants: `serial` (one process, in turns), `async` (its own asynchronous design)."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from typing import Any

import gymnasium
from measuring import Clock, report, set_torch_threads
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from work import (
    ADAM_EPSILON,
    CLIP,
    ENTROPY,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    VALUE,
    Task,
    task_from_command_line,
)


class TickAfterUpdates(AlgoObserver):
    """Sample Factory tells its observers of every training step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        del training_iteration_since_resume
        self._clock.tick(sum(runner.env_steps.values()))


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> gymnasium.Env:
    del cfg, env_config
    return gymnasium.make(name, render_mode=render_mode)


def arguments_of(task: Task, folder: str) -> list[str]:
    """Its command line: one worker with all environments, the work's sizes, no normalisation, no recurrence."""
    work, is_serial = task.ppo, task.variant == "serial"
    options = {
        "env": work.env,
        "experiment": "peer",
        "train_dir": folder,
        "restart_behavior": "overwrite",
        "device": "cpu",
        "algo": "APPO",
        "seed": task.seed,
        "serial_mode": is_serial,
        "async_rl": not is_serial,
        "num_workers": 1,
        "num_envs_per_worker": work.num_envs,
        "worker_num_splits": 1 if is_serial else 2,
        "rollout": work.rollout,
        "recurrence": 1,
        "use_rnn": False,
        "with_vtrace": False,
        "batch_size": work.minibatch,
        "num_batches_per_epoch": work.minibatches,
        "num_epochs": work.epochs,
        "learning_rate": LEARNING_RATE,
        "lr_schedule": "constant",
        "adam_eps": ADAM_EPSILON,
        "gamma": GAMMA,
        "gae_lambda": GAE_LAMBDA,
        "ppo_clip_ratio": CLIP,
        "ppo_clip_value": CLIP,
        "exploration_loss_coeff": ENTROPY,
        "value_loss_coeff": VALUE,
        "max_grad_norm": MAX_GRAD_NORM,
        "normalize_input": False,
        "normalize_returns": False,
        "actor_critic_share_weights": False,
        "nonlinearity": "tanh",
        "train_for_env_steps": task.num_steps,
        "save_every_sec": 100_000,
        "with_wandb": False,
        "decorrelate_envs_on_one_worker": False,
        "decorrelate_experience_max_seconds": 0,
        "set_workers_cpu_affinity": False,
    }
    layers = ["--encoder_mlp_layers", str(work.width), str(work.width)]
    return [*(f"--{name}={value}" for name, value in options.items()), *layers]


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    register_env(task.ppo.env, make_env)
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(task, folder)
        parser, _ = parse_sf_args(argv=arguments)
        settings = parse_full_cfg(parser, arguments)
        set_torch_threads(task)
        _, runner = make_runner(settings)
        runner.register_observer(TickAfterUpdates(clock))
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise RuntimeError(f"Sample Factory ended with {status}")
    figures = clock.figures()
    returns = list(runner.policy_avg_stats["reward"][0])
    mean_return = float(sum(returns) / len(returns))
    report(version("sample-factory"), figures, mean_return=mean_return, return_kind="training episodes")


if __name__ == "__main__":
    main()
