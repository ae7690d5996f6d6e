"""What masks leave to choose from, and trajectories whose masks cannot be learned from."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces
from test_stacking import trajectory

from relayrl.data.action_masks import allows_nothing, mask_parts, require_allowed
from relayrl.errors import ActionMaskError, ConfigError

SEVERAL = spaces.MultiDiscrete([2, 3, 1])


def test_parts_of_a_mask_are_the_choices_of_an_action():
    assert mask_parts(spaces.Discrete(4, start=2)) == (4,)
    assert mask_parts(SEVERAL) == (2, 3, 1)
    assert mask_parts(spaces.Box(-1, 1, (2,))) == mask_parts(spaces.MultiBinary(3)) == ()


def test_every_choice_needs_an_action():
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 1, 1], [1, 1, 1, 1, 1, 0]], bool)
    assert allows_nothing(mask, mask_parts(SEVERAL)).tolist() == [False, True, False, True]
    assert allows_nothing(mask[:, 2:4], (2,)).tolist() == [False, True, True, False]


def test_a_trajectory_that_allows_nothing_is_named():
    one = replace(trajectory(5, 3), action_space=spaces.Discrete(2))
    mask = np.array([[True, True], [True, False], [False, False]])
    require_allowed(one)
    require_allowed(replace(one, action_mask=mask | [True, False], final_mask=mask[2]))  # nobody acts after the end
    who = rf"agent {one.agent_id!r} of environment {one.env_id} at step 7 of episode {one.episode}:"
    with pytest.raises(ActionMaskError, match=who):
        require_allowed(replace(one, action_mask=mask))
    with pytest.raises(ConfigError, match=r"of shapes \[3, 2\] and \[3\].* take \[3, 2\] and \[2\]"):
        require_allowed(replace(one, action_mask=~mask, final_mask=np.ones(3, bool)))
