"""The trainer contract that Unity ML-Agents users know: trajectories come through a bounded queue, policies leave through one
in which the newest wins. `python examples/run_queue_driven.py SCRATCH_DIR`
"""

import sys
from pathlib import Path

from relayrl.engines.run_parts import build_parts
from relayrl.engines.run_settings import build_run_settings
from relayrl.training.queues import PolicyQueue, TrajectoryQueue
from relayrl.training.rl_trainer import RolloutTrainer
from relayrl.training.statistics import Statistics
from relayrl.training.statistics_writers import ProgressCsv


def main(folder: Path) -> None:
    """Train CartPole by calling `advance()`."""
    settings = build_run_settings("CartPole-v1", None, {"trainer.max_steps": 16_384}, [])
    folder.mkdir(parents=True, exist_ok=True)
    parts = build_parts(settings)
    trainer = RolloutTrainer(
        "CartPole",
        settings.trainer,
        make_policy=lambda behavior, group: parts.policies[behavior],
        make_learner=lambda policies: parts.trainer,
        stats_reporter=Statistics([ProgressCsv(folder / "progress.csv")]),
    )
    for behavior, group in parts.env.groups.items():
        trainer.add_policy(behavior, trainer.create_policy(behavior, group))

    trajectories, policies = TrajectoryQueue(capacity=1), PolicyQueue()
    trainer.subscribe_trajectory_queue(trajectories)
    trainer.publish_policy_queue(policies)
    version = 0
    while trainer.should_still_train:
        newest = policies.take()
        version = version if newest is None else newest.version
        trajectories.put(parts.collector.collect(version))
        trainer.advance()
    trainer.stats_reporter.summarize(trainer.get_step, {})
    parts.env.close()
    mean = sum(trainer.reward_buffer) / len(trainer.reward_buffer)
    print(f"{trainer.get_step:,} steps, policy version {version}, return of the latest episodes {mean:.0f}")
    assert mean > 100


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/queue-driven"))
