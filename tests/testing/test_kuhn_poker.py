"""Kuhn poker: the contract, and exploitabilities that are known."""

import itertools

import numpy as np
import pytest

from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.testing import check_environment, kuhn_exploitability, kuhn_mixture, kuhn_strategy

PLACES = list(itertools.product((0, 1, 2), ("", "p", "b", "pb")))


def equilibrium(alpha):
    """Kuhn's family: player 0 bluffs with the lowest card as often as it likes, up to a third."""
    strategy = dict.fromkeys(PLACES, 0.0)
    strategy |= {(0, ""): alpha, (2, ""): 3 * alpha, (1, "pb"): alpha + 1 / 3, (2, "pb"): 1.0}
    strategy |= {(0, "p"): 1 / 3, (2, "p"): 1.0, (1, "b"): 1 / 3, (2, "b"): 1.0}
    return strategy


def test_it_keeps_the_contract():
    report = check_environment(
        lambda n: make_vector("relayrl.testing:KuhnPoker", EnvSettings(num_envs=n)), num_steps=40
    )
    assert report.passed, str(report)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_equilibria_cannot_be_exploited(alpha):
    assert kuhn_exploitability(equilibrium(alpha)) == pytest.approx(0.0, abs=1e-12)


def test_exploitability_of_simple_strategies():
    assert kuhn_exploitability(dict.fromkeys(PLACES, 0.5)) == pytest.approx(11 / 24)  # OpenSpiel has 0.4583 as well
    assert kuhn_exploitability(dict.fromkeys(PLACES, 0.0)) == pytest.approx(1.0)  # who never bets loses every ante


def test_a_mixture_of_strategies_weighs_them_by_who_gets_there():
    passes, bets = dict.fromkeys(PLACES, 0.0), dict.fromkeys(PLACES, 1.0)
    half = kuhn_mixture([passes, {**bets, (0, ""): 0.5}])
    assert (half[1, ""], half[1, "p"]) == (0.5, 0.5)
    assert half[1, "pb"] == 0.0  # who bets at once never gets there
    assert half[0, "pb"] == pytest.approx(0.5 / 1.5)


def test_the_strategy_of_a_policy_is_read_from_its_distribution():
    def distribution(obs):
        assert obs.shape == (12, 7)
        return np.log(np.tile([0.25, 0.75], (12, 1)))

    assert kuhn_strategy(distribution) == dict.fromkeys(PLACES, pytest.approx(0.75))
