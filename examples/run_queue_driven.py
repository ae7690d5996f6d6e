"""The trainer contract that Unity ML-Agents users know: trajectories come through a bounded queue, policies leave through one
in which the newest wins. `python examples/run_queue_driven.py SCRATCH_DIR`
"""

import json
import sys
from pathlib import Path

from relayrl import TrainerSettings
from relayrl.extend import PolicyQueue, RolloutTrainer, Statistics, StatisticsWriter, TrajectoryQueue, make_run_parts

NUM_STEPS = 16_384


class Lines(StatisticsWriter):
    """A line of JSON for every row of statistics."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, num_env_steps: int, row: dict[str, float]) -> None:
        with self.path.open("a") as file:
            print(json.dumps({"num_env_steps": num_env_steps, **row}), file=file)


def main(folder: Path) -> None:
    """Train CartPole by calling `advance()`."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = make_run_parts("CartPole-v1", settings={"max_steps": NUM_STEPS})
    trainer = RolloutTrainer(
        "CartPole",
        TrainerSettings(max_steps=NUM_STEPS),
        make_policy=lambda behavior, group: parts.policies[behavior],
        make_learner=lambda policies: parts.trainer,
        stats_reporter=Statistics([Lines(folder / "statistics.jsonl")]),
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
        trajectories.put(parts.collect(version))
        trainer.advance()
    trainer.stats_reporter.summarize(trainer.get_step, {})
    parts.env.close()
    mean = sum(trainer.reward_buffer) / len(trainer.reward_buffer)
    print(f"{trainer.get_step:,} steps, policy version {version}, return of the latest episodes {mean:.0f}")
    assert mean > 100


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/queue-driven"))
