"""A curriculum: a goal behind two closed doors, found in one room first, then in two, then in three.

python examples/train_lessons.py RUN_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

import relayrl

DONE = {"behavior": "agent", "measure": "reward", "threshold": 0.6, "min_lesson_length": 50}
LESSONS = {
    "num_rooms": {
        "curriculum": [
            {"name": "one room", "value": 1, "completion_criteria": DONE},
            {"name": "two rooms", "value": 2, "completion_criteria": DONE},
            {"name": "three rooms", "value": 3},
        ]
    }
}


def main(run_dir: Path) -> None:
    run = relayrl.train(
        "native:rooms",
        steps=60_000,
        run_dir=run_dir,
        settings={
            "environment.options": {"num_rooms": 3, "room_size": 3},
            "environment_parameters": LESSONS,
            "evaluation.episodes": 20,
        },
    )
    lessons = run.history["curriculum/num_rooms/lesson"]
    print(f"lesson {lessons[-1] + 1:.0f} of 3, return {run.result.mean_return:.2f}")
    assert lessons[-1] == 2


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/lessons"))
