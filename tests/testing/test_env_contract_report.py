"""What the contract suite reports, and where it looks away."""

from __future__ import annotations

import pytest

from relayrl.errors import ConfigError, EnvError
from relayrl.testing.env_contract import CHECKS, ContractReport, Outcome, check_environment
from relayrl.testing.toy_environments import Herd


def herd_report(num_envs: int = 3, num_steps: int = 20, **options: float) -> ContractReport:
    return check_environment(lambda n: Herd(**options), num_envs=num_envs, num_steps=num_steps)


def test_every_check_is_reported_in_order() -> None:
    assert [check.name for check in herd_report().checks] == [check.name for check in CHECKS]


def test_a_passed_check_states_its_fact() -> None:
    assert herd_report().of("can_be_closed_twice").explanation == "close() may be called again"


def test_every_check_states_a_fact_in_one_line() -> None:
    assert all(check.fact != check.name and "\n" not in check.fact for check in CHECKS)


def test_what_a_check_needs_is_checked_before_it() -> None:
    names = [check.name for check in CHECKS]
    assert all(names.index(need) < names.index(check.name) for check in CHECKS for need in check.needs)


def test_failures_are_raised_with_their_explanations() -> None:
    class Endless(Herd):
        def step(self, actions):  # type: ignore[no-untyped-def]
            raise RuntimeError("out of grass")

    report = check_environment(lambda n: Endless(), num_steps=5)
    with pytest.raises(EnvError, match="runs: RuntimeError: out of grass"):
        report.raise_if_failed()


def test_an_environment_that_cannot_be_made_is_no_finding() -> None:
    def make(num_envs: int) -> Herd:
        raise ConfigError("no such environment")

    with pytest.raises(ConfigError, match="no such environment"):
        check_environment(make)


def test_a_clean_report_raises_nothing() -> None:
    herd_report().raise_if_failed()


def test_checks_of_ends_are_skipped_where_nothing_ended() -> None:
    result = herd_report(num_steps=2).of("an_episode_begins_where_one_ends")
    assert result.outcome is Outcome.SKIPPED
    assert "more steps" in result.explanation


def test_partial_resets_are_skipped_with_one_env() -> None:
    report = herd_report(num_envs=1)
    assert report.of("partial_reset_leaves_the_others_alone").outcome is Outcome.SKIPPED
    assert report.passed


def test_shared_generators_are_respected() -> None:
    class OneGenerator(Herd):
        independent_streams = False

        def reset(self, *, seed=None, env_ids=None):  # type: ignore[no-untyped-def]
            return super().reset(seed=None if seed is None else seed + self.num_envs, env_ids=env_ids)

    report = check_environment(lambda n: OneGenerator(), num_steps=20)
    assert report.of("environments_do_not_depend_on_their_number").outcome is Outcome.SKIPPED
    assert report.passed


def test_environments_that_have_their_envs_are_taken_as_they_are() -> None:
    def make(num_envs: int) -> Herd:
        herd = Herd()
        herd.init_num_envs(num_envs)
        return herd

    assert check_environment(make, num_steps=20).passed


def test_every_environment_that_was_made_is_closed() -> None:
    made: list[Herd] = []

    class Counted(Herd):
        num_closed = 0

        def close(self) -> None:
            self.num_closed += 1

    def make(num_envs: int) -> Herd:
        made.append(Counted())
        return made[-1]

    check_environment(make, num_steps=20)
    assert made
    assert {herd.num_closed for herd in made} <= {1, 2}
    assert sum(herd.num_closed for herd in made) == len(made) + 1
