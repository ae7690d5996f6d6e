"""The environment contract as code that can be run on any environment, RelayRL's or yours.

In a test of yours:

    def test_my_environment_keeps_the_contract():
        make = lambda n: relayrl.make_env("my_package:MyEnv", num_envs=n)
        check_environment(make).raise_if_failed()

or from the command line, `relayrl check-env my_package:MyEnv`. The rules are in `relayrl.envs.environment_contract`; each check
states one fact, which is its function's docstring, and plays random actions that keep to the masks. A check is skipped where it
does not apply, and not run where one that it builds on has failed. Some are optional: training does without them. The suite
knows nothing of pytest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.errors import ConfigError, RelayRLError
from relayrl.testing.checks import contract_array_checks as arrays
from relayrl.testing.checks import contract_episode_checks as episodes
from relayrl.testing.checks import contract_repeat_checks as repeats
from relayrl.testing.checks.contract_recording import Workbench
from relayrl.testing.contract_report import Check, CheckResult, ContractReport, Outcome, run_in_order
from relayrl.testing.random_play import random_actions

__all__ = ["CHECKS", "Check", "CheckResult", "ContractReport", "Outcome", "check_environment", "random_actions"]

RAISED = (
    RelayRLError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What an environment under test may raise and have reported; anything else is passed on, and so is a `ConfigError`."""


_RUNS = ("runs",)
_NAMED = (*_RUNS, "groups_name_every_agent_once", "results_cover_every_group")
_SHAPED = (*_NAMED, "shapes_are_right", "dtypes_are_right")
_MASKED = (*_SHAPED, "masks_fit_the_actions", "masks_allow_an_action")
_REPEATABLE = (*_MASKED, "same_seed_same_trajectory")
_RESETTABLE = (*_REPEATABLE, "ids_are_unique_and_stable", "an_episode_begins_where_one_ends")

_OPTIONAL = frozenset(
    (
        "observations_lie_in_their_spaces",
        "final_state_is_given_where_episodes_end",
        "observation_can_be_asked_again",
        "same_seed_same_trajectory",
        "seeded_reset_begins_again",
        "environments_do_not_depend_on_their_number",
        "idle_actions_are_ignored",
        "partial_reset_shows_the_others_unchanged",
        "partial_reset_leaves_the_others_alone",
        "seeded_partial_reset_begins_as_a_full_one",
        "state_is_plain_arrays",
        "state_round_trip",
        "wrong_shape_is_refused",
        "missing_group_is_refused",
        "unknown_id_is_refused",
        "can_be_closed_twice",
    )
)
"""What runs are repeatable by, resumed bit for bit by, or told of mistakes by; policies learn without it."""

_CHECKS = (
    Check(arrays.runs),
    Check(arrays.ids_are_unique_and_stable, _RUNS),
    Check(arrays.groups_name_every_agent_once, _RUNS),
    Check(arrays.results_cover_every_group, _RUNS),
    Check(arrays.arrays_are_of_the_declared_device, _RUNS),
    Check(arrays.shapes_are_right, _NAMED),
    Check(arrays.dtypes_are_right, _NAMED),
    Check(arrays.observations_lie_in_their_spaces, _SHAPED),
    Check(arrays.rewards_are_finite, _SHAPED),
    Check(arrays.masks_fit_the_actions, _SHAPED),
    Check(arrays.masks_allow_an_action, (*_SHAPED, "masks_fit_the_actions")),
    Check(arrays.state_fits_its_space, _NAMED),
    Check(arrays.final_state_is_given_where_episodes_end, (*_NAMED, "state_fits_its_space")),
    Check(episodes.someone_acts, _SHAPED),
    Check(episodes.final_rows_are_the_ended_lanes, _SHAPED),
    Check(episodes.lanes_end_at_most_once, _SHAPED),
    Check(episodes.ended_lanes_stay_idle, _SHAPED),
    Check(episodes.episode_over_ends_every_lane, _SHAPED),
    Check(
        episodes.an_episode_begins_where_one_ends, (*_SHAPED, "final_rows_are_the_ended_lanes", "state_fits_its_space")
    ),
    Check(episodes.final_shows_the_ended_episode, (*_SHAPED, "an_episode_begins_where_one_ends")),
    Check(repeats.observation_can_be_asked_again, _MASKED),
    Check(repeats.same_seed_same_trajectory, _MASKED),
    Check(repeats.seeded_reset_begins_again, _REPEATABLE),
    Check(repeats.environments_do_not_depend_on_their_number, _REPEATABLE),
    Check(repeats.idle_actions_are_ignored, _REPEATABLE),
    Check(repeats.partial_reset_shows_the_others_unchanged, _RESETTABLE),
    Check(
        repeats.partial_reset_leaves_the_others_alone,
        (*_RESETTABLE, "partial_reset_shows_the_others_unchanged"),
    ),
    Check(repeats.seeded_partial_reset_begins_as_a_full_one, _RESETTABLE),
    Check(repeats.state_is_plain_arrays, _RUNS),
    Check(repeats.state_round_trip, (*_REPEATABLE, "state_is_plain_arrays")),
    Check(repeats.wrong_shape_is_refused, _MASKED),
    Check(repeats.missing_group_is_refused, _MASKED),
    Check(repeats.unknown_id_is_refused, _RUNS),
    Check(repeats.can_be_closed_twice, _RUNS),
)
CHECKS = tuple(replace(check, is_optional=check.name in _OPTIONAL) for check in _CHECKS)
"""All checks, in the order in which they run; what a check needs comes before it."""


def check_environment(
    make: Callable[[int], VectorEnvironment],
    *,
    num_envs: int = 3,
    num_steps: int = 60,
    seed: int = 0,
    on_result: Callable[[CheckResult], None] | None = None,
) -> ContractReport:
    """Run all checks on environments that `make(num_envs)` returns, before or after `init_num_envs`.

    About twenty environments are made, one after the other, and most are played for `num_steps`. Choose `num_steps` so that
    episodes end in it; otherwise the checks of ends find nothing to look at. `on_result` gets each result as its check ends.
    """
    bench = Workbench(make, num_envs, num_steps, seed)
    return ContractReport(run_in_order(CHECKS, lambda check: _run(check, bench), on_result))


def _run(check: Check[Workbench], bench: Workbench) -> CheckResult:
    try:
        broken = check.run(bench)
        bench.release()
    except episodes.NothingToSee as reason:
        bench.release()
        return check.skipped(str(reason))
    except ConfigError:
        raise
    except RAISED as error:
        with contextlib.suppress(*RAISED):
            bench.release()
        broken = f"{type(error).__name__}: {error}"
    return check.found(broken)
