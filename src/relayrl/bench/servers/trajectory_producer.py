"""A client that sends numbered trajectories as an actor of CartPole does, however often it is killed.

    python -m relayrl.bench.servers.trajectory_producer ADDRESS SPOOL COUNT [STEPS] [ENVS]

Message `k` of a spool holds one trajectory whose id follows from the spool's client id and `k`. So whoever counts what a server
has stored knows what must be there: `trajectory_name(client_id, k)` for every `k` below COUNT, each once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import UUID, uuid5

import numpy as np
from gymnasium import spaces

from relayrl.data.columns import Trajectory
from relayrl.errors import SpoolFullError
from relayrl.runtime.remote.server_link import LinkSettings, ServerLink
from relayrl.runtime.remote.spool import Spool, SpoolSettings
from relayrl.runtime.remote.spool_sink import frames_of
from relayrl.sinks.buffered import checked_blocks

OBSERVATION_SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACE = spaces.Discrete(2)


def trajectory_name(client_id: UUID, number: int) -> UUID:
    """The id of the trajectory in a client's message `number`."""
    return uuid5(client_id, str(number))


def numbered_trajectory(client_id: UUID, number: int, num_steps: int, version: int = 0) -> Trajectory:
    """What message `number` holds: the same whenever it is asked for."""
    rng = np.random.default_rng(number)
    return Trajectory(
        trajectory_id=trajectory_name(client_id, number),
        env_id=client_id,
        agent_id="agent",
        group="agent",
        observation_space=OBSERVATION_SPACE,
        action_space=ACTION_SPACE,
        episode=number,
        first_step=0,
        obs=rng.normal(size=(num_steps, 4)).astype(np.float32),
        action=rng.integers(0, 2, num_steps),
        reward=np.ones(num_steps, np.float32),
        policy_version=np.full(num_steps, version, np.int64),
        terminated=True,
        truncated=False,
        failed=False,
        final_obs=np.zeros(4, np.float32),
        logp=np.full(num_steps, -0.7, np.float32),
    )


def produce(address: str, spool: Spool, count: int, num_steps: int = 20, settings: LinkSettings | None = None) -> None:
    """Spool and send until the server holds `count` messages of this spool durably."""
    with ServerLink(address, spool, settings=settings) as link:
        while spool.next_number < count:
            number = spool.next_number
            (block,) = checked_blocks([numbered_trajectory(spool.client_id, number, num_steps)])
            try:
                spool.append(frames_of([block]))
            except SpoolFullError:
                spool.wait_for_room(1 << 16, 0.5)
                continue
            if number % 8 == 7 or number == count - 1:
                link.wake()
        while not spool.wait_until_empty(1.0):
            link.newest("agent")  # raises where the server refused for good


def main(arguments: list[str]) -> None:
    address, directory, count = arguments[:3]
    num_steps = int(arguments[3]) if len(arguments) > 3 else 20
    settings = LinkSettings(reply_timeout_s=2.0, max_retry_s=1.0)
    with Spool(Path(directory), SpoolSettings(max_bytes=1 << 20, segment_bytes=1 << 17)) as spool:
        produce(address, spool, int(count), num_steps, settings)


if __name__ == "__main__":
    main(sys.argv[1:])
