"""Whom on-policy central critics see after a row, by hand: agents of one environment, whose observations tell who and when."""

from uuid import UUID

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.algorithms.critics.critic_sight import CriticSight
from relayrl.algorithms.critics.joint_observations import CentralCritics, CentralGroup
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.steps.rollout_builder import RolloutBuilder
from relayrl.envs.environment_contract import FinalObservations

BOX = spaces.Box(-np.inf, np.inf, (1,), np.float32)
OBSERVATIONS = CriticSight(observations=True, state=False)


def blocks(ends, valid, groups, *lengths: int) -> list[dict[str, Rollout]]:
    """Agents 0 and 1 see 10 and 20 before step 0, 11 and 21 before step 1; what they see last in an episode has a minus."""
    builders = {
        name: RolloutBuilder(LaneHeader(name, (UUID(int=1),), tuple(map(str, agents)), BOX, BOX), max(lengths))
        for name, agents in groups.items()
    }
    result, t = [], 0
    for length in lengths:
        for _ in range(length):
            for name, agents in groups.items():
                ended = np.array([ends[t][n] for n in agents])
                where = np.flatnonzero(ended)
                last = -seen(t + 1, [agents[i] for i in where])
                builders[name].add(seen(t, agents), seen(t, agents), np.array([valid[t][n] for n in agents], bool))
                builders[name].finish_row(
                    np.zeros(len(agents)), ended == 1, ended == 2, None, FinalObservations(0 * where, where, last)
                )
            t += 1
        result.append({name: builder.build(seen(t, groups[name]), 0) for name, builder in builders.items()})
    return result


def seen(step: int, agents) -> np.ndarray:
    return np.array([10.0 * (n + 1) + step for n in agents], np.float32).reshape(-1, 1)


ONE_GROUP, TWO_GROUPS = {"pair": (0, 1)}, {"wolf": (0,), "sheep": (1,)}
AFTER = {
    # what follows is seen by: (step, agent): observations of agents 0 and 1
    "one died": ([[0, 1], [0, 0]], [[1, 1], [1, 0]], {(1, 0): (12, 0)}),
    "one was truncated": ([[0, 2], [0, 0]], [[1, 1], [1, 0]], {(0, 1): (11, -21), (1, 0): (12, 0)}),
    "one died at the block's end": ([[0, 0], [0, 1]], [[1, 1], [1, 1]], {(1, 0): (12, 0)}),
    "one was truncated at its end": ([[0, 0], [0, 2]], [[1, 1], [1, 1]], {(1, 0): (12, 0), (1, 1): (12, -22)}),
    "both were truncated": ([[2, 2], [0, 0]], [[1, 1], [1, 1]], {(0, 0): (-11, -21), (0, 1): (-11, -21)}),
    "one died before that": ([[0, 1], [2, 0], [0, 0]], [[1, 1], [1, 0], [1, 1]], {(1, 0): (-12, 0)}),
    "turns": ([[0, 0], [0, 0]], [[1, 0], [0, 1]], {(1, 0): (12, 0), (1, 1): (0, 22)}),
    "truncated turns": ([[0, 0], [2, 2]], [[1, 0], [0, 1]], {(1, 0): (-12, 0), (1, 1): (0, -22)}),
    "one left when it was not its turn": (
        [[0, 0], [2, 0], [0, 0]],
        [[1, 0], [0, 1], [0, 1]],
        {(1, 0): (-12, 0), (2, 1): (0, 23)},
    ),
}


@pytest.mark.parametrize("groups", [ONE_GROUP, TWO_GROUPS], ids=["one group", "two groups"])
@pytest.mark.parametrize("case", AFTER)
def test_after_a_row_critics_see_who_is_still_there(case, groups):
    ends, valid, expected = AFTER[case]
    (rollouts,) = blocks(ends, valid, groups, len(ends))
    assert successors(groups, rollouts).items() >= expected.items()


def test_an_environment_goes_on_for_whoever_acted_before_the_block_and_waits():
    # Agent 0 acts in the first block and waits in the second, in which the others are truncated: each is gone to the other.
    trio = {"trio": (0, 1, 2)}
    _, rollouts = blocks([[0, 0, 0], [0, 2, 2], [0, 0, 0]], [[1, 1, 1], [0, 1, 1], [1, 0, 0]], trio, 1, 2)
    after = successors(trio, rollouts)
    assert (after[0, 1], after[0, 2], after[1, 0]) == ((0, -22, 0), (0, 0, -32), (13, 0, 0))


def test_whoever_appears_with_the_next_row_is_seen():
    # Agent 0 is truncated alone; agent 1 goes on, and agent 2 acts for the first time.
    trio = {"trio": (0, 1, 2)}
    (rollouts,) = blocks([[2, 0, 0], [0, 0, 0]], [[1, 1, 0], [0, 1, 1]], trio, 2)
    assert successors(trio, rollouts).items() >= {(0, 0): (-11, 21, 31), (1, 1): (0, 22, 32)}.items()


def successors(groups, rollouts) -> dict[tuple[int, int], tuple[float, ...]]:
    critics = CentralCritics({name: CentralGroup(BOX, len(own), OBSERVATIONS) for name, own in groups.items()}, None)
    after = {}
    for name, inputs in critics.inputs(rollouts).items():
        places = rollouts[name].successors
        for step, lane, row in zip(places.step, places.lane, inputs.successors.laid_out(), strict=True):
            after[int(step), groups[name][lane]] = tuple(row[: -len(groups[name])].tolist())
    return after
