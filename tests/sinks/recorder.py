"""A program that records until it is killed: `python recorder.py URL SEED`.

Every flush is followed by a line with the ids that are durable from then on.
"""

from __future__ import annotations

import sys
from itertools import count

from recorded_steps import plain_trajectory

from relayrl.sinks.contract import open_sink
from relayrl.sinks.sink_settings import DatabaseSettings, FileSettings, SinkSettings

SETTINGS = SinkSettings(
    files=FileSettings(max_part_bytes=200_000), database=DatabaseSettings(retry_deadline_s=30.0, max_delay_s=0.2)
)


def main(url: str, seed: int) -> None:
    with open_sink(url, SETTINGS) as sink:
        for number in count():
            some = [plain_trajectory(seed, 5 * number + i) for i in range(5)]
            sink.write(some)
            sink.flush()
            print(*(trajectory.trajectory_id for trajectory in some), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
