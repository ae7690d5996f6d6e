"""The one way to act, for actors of a user's own: `decide` follows from what they have."""

import numpy as np
import pytest
from gymnasium import spaces

from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor
from relayrl.models.heads.head_registry import likelihood_head

OBS = np.zeros((3, 2), np.float32)


class Even(Actor):
    """Has a distribution and nothing else."""

    head = likelihood_head(spaces.Discrete(4))

    def distribution(self, obs, mask=None):
        return self.head.parameters_numpy(np.zeros((len(obs), 4), np.float32), mask)


class Stubborn(Even):
    """Draws by itself."""

    def act(self, obs, mask, rng):
        return np.full(len(obs), 2)


class Counting(Even):
    """Remembers how often it acted."""

    memory_width = 1

    def step(self, obs, mask, memory):
        return self.distribution(obs, mask), memory + 1


def test_a_distribution_is_enough():
    decision = Even().decide(OBS, None, None, np.random.default_rng(0))
    expected = Even.head.sample(Even().distribution(OBS), np.random.default_rng(0))
    assert decision.action.tolist() == expected.tolist()
    np.testing.assert_allclose(decision.logp, np.log(0.25), rtol=1e-6)
    assert (decision.value, decision.memory) == (None, None)
    assert Even().act(OBS, None, np.random.default_rng(0)).tolist() == expected.tolist()


def test_without_a_generator_the_most_likely_action_is_taken():
    mask = np.array([[False, False, True, True]] * 3)
    assert Even().decide(OBS, mask, None, None).action.tolist() == [2, 2, 2]
    assert Even().act_greedily(OBS, mask).tolist() == [2, 2, 2]


def test_an_actor_that_draws_by_itself_is_obeyed():
    decision = Stubborn().decide(OBS, None, None, np.random.default_rng(0))
    assert decision.action.tolist() == [2, 2, 2]
    np.testing.assert_allclose(decision.logp, np.log(0.25), rtol=1e-6)


def test_a_memory_comes_back_and_is_not_left_out():
    decision = Counting().decide(OBS, None, np.full((3, 1), 4.0, np.float32), None)
    assert decision.memory.tolist() == [[5.0]] * 3
    with pytest.raises(ConfigError, match="memory"):
        Counting().decide(OBS, None, None, None)
