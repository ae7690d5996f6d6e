"""RelayRL doing any of the works, by the settings that `relayrl train` takes.

Variants: the environment for CartPole (`CartPole-v1`: as RelayRL runs it, on Gymnasium's vector CartPole; `native:CartPole`;
`Python CartPole`: one Gymnasium environment per environment, stepped in a loop), the algorithm for simple_spread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jobs import OWN_CHOICE
from measuring import Clock, greedy_return, report
from work import (
    CLIP,
    ENTROPY,
    EVALUATION_EPISODES,
    EVALUATION_INTERVAL,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    MPE_CYCLES,
    NUM_AGENTS,
    OFF_POLICY_LEARNING_RATE,
    REPLAY_SIZE,
    SOLVED_RETURN,
    VMAS_STEPS,
    OffPolicyWork,
    PpoWork,
    Task,
    ThresholdWork,
    task_from_command_line,
)

Flags = dict[str, Any]

CART_POLES: dict[str, Flags] = {
    "CartPole-v1": {},
    "native:CartPole": {},
    # Single environments can be restarted only where each is an environment of its own.
    "Python CartPole": {"environment.on_failure": "restart"},
}
SPREADS: dict[str, tuple[str, Flags]] = {
    "W4a": ("mpe2:simple_spread_v3", {"N": NUM_AGENTS, "max_cycles": MPE_CYCLES, "continuous_actions": False}),
    "W4b": ("vmas:simple_spread", {"n_agents": NUM_AGENTS, "max_steps": VMAS_STEPS, "continuous_actions": True}),
    "W4c": ("native:simple_spread", {"N": NUM_AGENTS, "max_cycles": MPE_CYCLES, "continuous_actions": True}),
}

GYMNASIUM_ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1")
WORKERS = {"W4a": 2}
"""Processes for environments that cost far more than the policy; the others step in this one."""


def settings_of(task: Task) -> tuple[str, Flags]:
    """The environment and the settings, as dotted paths, of a task."""
    work = task.work
    flags: Flags = {
        "seed": task.seed,
        "environment.num_envs": work.num_envs,
        "trainer.max_steps": task.num_steps,
        "evaluation.episodes": EVALUATION_EPISODES,
    }
    if isinstance(work, ThresholdWork):
        return work.env, _until_solved(task)
    if isinstance(work, OffPolicyWork):
        return work.env, {**flags, **_off_policy(task, work)}
    flags |= _ppo(work)
    if task.work_name in SPREADS:
        env, options = SPREADS[task.work_name]
        flags["environment.workers"] = WORKERS.get(task.work_name, 0)
        return env, {**flags, "algo": task.variant, "environment.options": options}
    env = work.env if task.variant in ("", "Python CartPole") else task.variant
    return env, {**flags, "algo": "ppo", **CART_POLES.get(task.variant, {})}


def _ppo(work: PpoWork) -> Flags:
    params = {
        "train_pi_iters": work.epochs,
        "train_vf_iters": work.epochs,
        "num_minibatches": work.minibatches,
        "pi_lr": LEARNING_RATE,
        "vf_lr": LEARNING_RATE,
        "gamma": GAMMA,
        "lam": GAE_LAMBDA,
        "clip_ratio": CLIP,
        "value_clip": CLIP,
        "entropy_coef": ENTROPY,
        "max_grad_norm": MAX_GRAD_NORM,
        "target_kl": None,
        "lr_schedule": "linear",
    }
    network = {"hidden_sizes": work.layers, "activation": "tanh"}
    return {"trainer.time_horizon": work.rollout, "network": network, "params": params}


def _off_policy(task: Task, work: OffPolicyWork) -> Flags:
    params = {
        "actor_lr": OFF_POLICY_LEARNING_RATE,
        "critic_lr": OFF_POLICY_LEARNING_RATE,
        "gamma": GAMMA,
        "batch_size": work.batch_size,
        "buffer_size": REPLAY_SIZE,
        "learning_starts": work.learning_starts,
        "update_interval": 1,
        "train_iters": 1,
    }
    algo = task.work_name.removeprefix("W5-")
    if algo == "sac":
        params["temperature_lr"] = OFF_POLICY_LEARNING_RATE
    network = {"hidden_sizes": (work.width, work.width), "activation": "relu"}
    return {"algo": algo, "network": network, "params": params}


def _until_solved(task: Task) -> Flags:
    """`relayrl train CartPole-v1` with its preset, stopped by its own evaluation."""
    return {
        "seed": task.seed,
        "evaluation.episodes": EVALUATION_EPISODES,
        "evaluation.interval": EVALUATION_INTERVAL,
        "evaluation.interval_episodes": EVALUATION_EPISODES,
        "evaluation.target_return": SOLVED_RETURN,
    }


def _exported_policy(run: Path) -> Callable[[Any], Any]:
    """What the run learned, as `greedy_return` takes it: everybody's policy plays the same episodes."""
    from relayrl.models.exports.exported import ExportedActor

    (model,) = run.rglob("*.onnx")
    actor = ExportedActor(model)
    return lambda observation: actor.head.to_environment(actor.act_greedily(observation[None]))[0]


def main() -> None:
    task = task_from_command_line()
    clock = Clock(task)
    from relayrl.engines.process.interrupts import Interrupt
    from relayrl.engines.sessions import TrainRequest, open_session, run_session

    env, flags = settings_of(task)
    if task.runners:
        flags |= {"engine": "ray", "environment.workers": task.runners}
    if task.threads != OWN_CHOICE:
        flags["threads"] = task.threads
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(TrainRequest(env, Path(folder) / "run", flags=flags))
        seconds = 0.0

        def on_progress(progress: Any) -> None:
            nonlocal seconds
            clock.tick(progress.num_env_steps)
            seconds = clock.seconds_since_start()

        result = run_session(session, on_progress, Interrupt())
        mean_return = result.mean_return
        if task.work.env in GYMNASIUM_ENVIRONMENTS:
            mean_return = greedy_return(task.work.env, _exported_policy(Path(folder) / "run"))
    details = {"num_env_steps": result.num_env_steps, "parameter_hash": result.parameter_hash}
    if isinstance(task.work, ThresholdWork):
        details["seconds_to_threshold"] = seconds if result.reached_target else None
    report(version("relayrl"), clock.figures(), mean_return=mean_return, **details)


if __name__ == "__main__":
    main()
