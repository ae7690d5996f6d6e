"""A learner beside the first one: takes part in each update that it is sent, until the first one ends it or is gone.

`python -m relayrl.training.learners.learner_process HOST PORT RANK NUM_LEARNERS THREADS`, as `learner_group` starts it.
"""

from __future__ import annotations

import signal
import sys

import torch

from relayrl.algorithms.optimizer import FlatAdam
from relayrl.errors import LearningError, TrainingDivergedError
from relayrl.training.learners.exchange import Exchange, store_at
from relayrl.training.learners.learner_group import LearnerPlace, Replica
from relayrl.training.learners.split_update import SplitSteps, Work, split_update


def learn_along(exchange: Exchange) -> None:
    """Take part until the first learner sends None."""
    updates: list[SplitSteps] = []
    while (work := exchange.receive()) is not None:
        if isinstance(work, Replica):
            updates.append(_update_of(work, exchange))
        elif isinstance(work, Work):
            try:
                updates[work.which].join(work)
            except TrainingDivergedError:
                continue  # so has the first learner, which says so


def _update_of(replica: Replica, exchange: Exchange) -> SplitSteps:
    policy, (pi_norm, vf_norm) = replica.policy, replica.max_norms
    pi_optimizer = FlatAdam(policy.actor_parameters(), 0.0, pi_norm)
    vf_optimizer = FlatAdam(policy.critic_parameters(), 0.0, vf_norm)
    update = split_update(policy, replica.objective, pi_optimizer, vf_optimizer)
    update.exchange = lambda: exchange
    return update


def take_part(place: LearnerPlace, own_host: str) -> None:
    """Be the learner of `place` on a machine whose address is `own_host`, until the first learner ends or is gone."""
    torch.set_num_threads(place.threads)
    learn_along(Exchange(store_at(place.host, place.port), place.rank, place.num_learners, own_host))


def main(host: str, port: str, rank: str, num_learners: str, threads: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first learner decides
    try:
        take_part(LearnerPlace(host, int(port), int(rank), int(num_learners), int(threads)), host)
    except LearningError:
        sys.exit(1)  # the first learner has ended


if __name__ == "__main__":
    main(*sys.argv[1:])
