"""BenchMARL's MAPPO and IPPO on VMAS's simple_spread; the variant is the algorithm."""

from __future__ import annotations

import tempfile
import warnings
from importlib.metadata import version
from typing import Any

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig
from benchmarl.environments import VmasTask
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from measuring import Clock, report, set_torch_threads
from work import (
    ADAM_EPSILON,
    CLIP,
    ENTROPY,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    NUM_AGENTS,
    VALUE,
    VMAS_STEPS,
    Task,
    task_from_command_line,
)

CONFIGS = {"mappo": MappoConfig, "ippo": IppoConfig}


class TickAfterUpdates(Callback):
    """One group of agents, so the end of its training is the end of the update."""

    def __init__(self, clock: Clock, batch: int) -> None:
        super().__init__()
        self._clock, self._batch, self._num_updates = clock, batch, 0

    def on_train_end(self, training_td: Any, group: str) -> None:
        del training_td, group
        self._num_updates += 1
        self._clock.tick(self._num_updates * self._batch)


def experiment_settings(task: Task, folder: str) -> ExperimentConfig:
    """BenchMARL's defaults with the work's sizes."""
    work, settings = task.ppo, ExperimentConfig.get_from_yaml()
    settings.sampling_device = settings.train_device = settings.buffer_device = "cpu"
    settings.share_policy_params = settings.prefer_continuous_actions = settings.clip_grad_norm = True
    settings.gamma, settings.lr, settings.adam_eps, settings.clip_grad_val = (
        GAMMA,
        LEARNING_RATE,
        ADAM_EPSILON,
        MAX_GRAD_NORM,
    )
    settings.on_policy_collected_frames_per_batch = work.batch
    settings.on_policy_n_envs_per_worker = work.num_envs
    settings.on_policy_n_minibatch_iters = work.epochs
    settings.on_policy_minibatch_size = work.minibatch
    settings.max_n_frames, settings.max_n_iters = None, task.num_steps // work.batch
    settings.evaluation = settings.render = settings.create_json = False
    settings.loggers, settings.save_folder = [], folder
    return settings


def main() -> None:
    warnings.filterwarnings("ignore")
    task = task_from_command_line()
    clock = Clock(task)
    set_torch_threads(task)
    algorithm = CONFIGS[task.variant].get_from_yaml()
    algorithm.clip_epsilon, algorithm.entropy_coef, algorithm.critic_coef, algorithm.lmbda = (
        CLIP,
        ENTROPY,
        VALUE,
        GAE_LAMBDA,
    )
    model = MlpConfig.get_from_yaml()
    model.num_cells, model.activation_class, model.layer_class = (
        [task.ppo.width, task.ppo.width],
        torch.nn.Tanh,
        torch.nn.Linear,
    )
    scenario = VmasTask.SIMPLE_SPREAD.get_from_yaml()
    scenario.config |= {"max_steps": VMAS_STEPS, "n_agents": NUM_AGENTS}
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task=scenario,
            algorithm_config=algorithm,
            model_config=model,
            critic_model_config=model,
            seed=task.seed,
            config=experiment_settings(task, folder),
            callbacks=[TickAfterUpdates(clock, task.ppo.batch)],
        )
        experiment.run()
    figures = clock.figures()
    mean_return = float(experiment.mean_return)
    report(version("benchmarl"), figures, mean_return=mean_return, return_kind="training episodes, per agent")


if __name__ == "__main__":
    main()
