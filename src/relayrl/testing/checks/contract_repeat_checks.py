"""Checks of the environment contract that play more than once: seeds, partial resets, saved states, misuse.

Each check is one fact about a `Workbench`; it returns what is wrong, or None. `env_contract` says in which order they run.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

from relayrl.data.trees import index
from relayrl.envs.environment_contract import StatefulEnvironment, VectorEnvironment
from relayrl.errors import RelayRLError
from relayrl.testing.checks.contract_episode_checks import NothingToSee, without_results
from relayrl.testing.checks.contract_recording import (
    Recording,
    Workbench,
    begin,
    copied,
    first_difference,
    play,
    result_difference,
)

_OTHER_SEED = 1_000_003
"""Added to the seed where a check wants another one."""


def same_seed_same_trajectory(bench: Workbench) -> str | None:
    """two environments with the same seed and actions give the same trajectory, bit for bit"""
    return first_difference(bench.recording, bench.record(bench.fresh()), np.arange(bench.num_envs))


def seeded_reset_begins_again(bench: Workbench) -> str | None:
    """reset(seed) gives the same trajectory again, whatever was played before"""
    env = bench.fresh()
    play(env, begin(env, bench.seed + _OTHER_SEED), bench.player(env), bench.num_steps // 2)
    return first_difference(bench.recording, bench.record(env), np.arange(bench.num_envs))


def environments_do_not_depend_on_their_number(bench: Workbench) -> str | None:
    """environment b goes the same way however many environments there are beside it"""
    env = bench.fresh(bench.num_envs + 2)
    if env.num_envs == bench.num_envs:
        raise NothingToSee(f"there are {env.num_envs} environments, whatever number is asked for")
    _require_independent_streams(env)
    return first_difference(bench.recording, bench.record(env), np.arange(bench.num_envs))


def idle_actions_are_ignored(bench: Workbench) -> str | None:
    """the action of a lane that does not act changes nothing"""
    moments = [result for _, result in bench.recording.moments()]
    if all(group.active.all() for result in moments[:-1] for group in result.groups.values()):
        raise NothingToSee("every lane acted in every step")
    return first_difference(bench.recording, bench.record(bench.fresh(), idle_seed=1), np.arange(bench.num_envs))


def partial_reset_shows_the_others_unchanged(bench: Workbench) -> str | None:
    """reset(env_ids) gives the other environments' current observations along with the new ones"""
    _, before, result = _after_partial_reset(bench)
    others = np.arange(1, bench.num_envs)
    found = result_difference(result, before.last, others)
    return None if found is None else f"after a reset of environment 0 alone, in the others {found}"


def partial_reset_leaves_the_others_alone(bench: Workbench) -> str | None:
    """environments that reset(env_ids) does not name go on as if nothing had happened"""
    env, played, result = _after_partial_reset(bench)
    _require_independent_streams(env)
    now, later = bench.recording.steps[len(played.steps) - 1], bench.recording.steps[len(played.steps) :]
    untouched = Recording(env.groups, env.state_space, env.env_ids, without_results(now), later)
    resumed = Recording(env.groups, env.state_space, env.env_ids, result)
    player = bench.player(env)
    for _, moment in list(played.moments())[:-1]:
        player.act(moment.groups)
    play(env, resumed, player, len(untouched.steps))
    found = first_difference(untouched, resumed, np.arange(1, bench.num_envs))
    return None if found is None else f"after a reset of environment 0 alone, in the others at {found}"


def seeded_partial_reset_begins_as_a_full_one(bench: Workbench) -> str | None:
    """reset(seed, env_ids) begins the named environment as reset(seed) would"""
    env, _, _ = _after_partial_reset(bench)
    _require_independent_streams(env)
    last = bench.num_envs - 1
    result = copied(env.reset(seed=bench.seed, env_ids=[env.env_ids[last]]))
    return result_difference(result, bench.recording.first, np.array([last]))


def _after_partial_reset(bench: Workbench) -> tuple[VectorEnvironment, Recording, Any]:
    """An environment whose environment 0 has been reset in the middle of things, what came before, and what the reset gave."""
    if bench.num_envs < 2:
        raise NothingToSee("there is one environment only; give num_envs of at least 2")
    env = bench.fresh()
    played = play(env, begin(env, bench.seed), bench.player(env), max(1, bench.num_steps // 3))
    return env, played, copied(env.reset(env_ids=[env.env_ids[0]]))


def _require_independent_streams(env: VectorEnvironment) -> None:
    if not env.independent_streams:
        raise NothingToSee("independent_streams is False: environments draw from one generator")


def observation_can_be_asked_again(bench: Workbench) -> str | None:
    """build_observation() gives what the last reset() or step() gave"""
    env = bench.fresh()
    played = begin(env, bench.seed)
    for num_steps in (0, 1):
        play(env, played, bench.player(env), num_steps)
        again = copied(env.build_observation())
        found = result_difference(again, without_results(played.last), np.arange(bench.num_envs))
        if found:
            return f"after {'step()' if num_steps else 'reset()'}: {found}"
    return None


def state_is_plain_arrays(bench: Workbench) -> str | None:
    """get_state() gives named NumPy arrays of plain dtypes"""
    env, stateful = _stateful(bench)
    begin(env, bench.seed)
    for name, array in stateful.get_state().items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray) or array.dtype == object:
            return f"{name!r} is a {type(array).__name__}, not an array of numbers"
    return None


def state_round_trip(bench: Workbench) -> str | None:
    """an environment continues bit for bit from a state that another one, or itself earlier, gave"""
    env, stateful = _stateful(bench)
    player = bench.player(env)
    before = play(env, begin(env, bench.seed), player, max(1, bench.num_steps // 3))
    state = stateful.get_state()
    kept = {name: array.copy() for name, array in state.items()}
    goes_on = play(env, _from(before), copy.deepcopy(player), bench.num_steps // 2)
    if any(not np.array_equal(kept[name], state[name]) for name in kept):
        return "a state that was given out changed when the environment went on"
    other, other_stateful = _stateful(bench)
    begin(other, bench.seed + _OTHER_SEED)
    for who, again, saved in (("the same environment", env, stateful), ("another environment", other, other_stateful)):
        saved.set_state(kept)
        resumed = play(again, _from(before), copy.deepcopy(player), bench.num_steps // 2)
        found = first_difference(goes_on, resumed, np.arange(bench.num_envs))
        if found:
            return f"{who} goes another way: {found}"
    return None


def _stateful(bench: Workbench) -> tuple[VectorEnvironment, StatefulEnvironment]:
    env = bench.fresh()
    if not isinstance(env, StatefulEnvironment):
        raise NothingToSee("it is no StatefulEnvironment")
    return env, env


def _from(played: Recording) -> Recording:
    """A recording that begins where another stands."""
    return Recording(played.groups, played.state_space, played.env_ids, without_results(played.last))


def wrong_shape_is_refused(bench: Workbench) -> str | None:
    """step() with actions for too few environments raises a RelayRLError"""
    env = bench.fresh()
    actions = bench.player(env).act(copied(env.reset(seed=bench.seed)).groups)
    short = {name: index(tree, slice(0, bench.num_envs - 1)) for name, tree in actions.items()}
    return _refusal(lambda: env.step(short), "step() with actions for too few environments")


def missing_group_is_refused(bench: Workbench) -> str | None:
    """step() without the actions of a group raises a RelayRLError"""
    env = bench.fresh()
    actions = bench.player(env).act(copied(env.reset(seed=bench.seed)).groups)
    del actions[next(iter(actions))]
    return _refusal(lambda: env.step(actions), "step() without the actions of a group")


def unknown_id_is_refused(bench: Workbench) -> str | None:
    """reset() of an environment that does not exist raises a RelayRLError"""
    env = bench.fresh()
    env.reset(seed=bench.seed)
    return _refusal(lambda: env.reset(env_ids=[uuid.UUID(int=0)]), "reset() of an unknown id")


def _refusal(attempt: Callable[[], Any], what: str) -> str | None:
    try:
        attempt()
    except RelayRLError:
        return None
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return f"{what} raised {type(error).__name__}: {error}; raise an EnvError that says what to do"
    return f"{what} was accepted"


def can_be_closed_twice(bench: Workbench) -> str | None:
    """close() may be called again"""
    env = bench.fresh()
    env.reset(seed=bench.seed)
    bench.forget()
    env.close()
    env.close()
    return None
