"""Who shares a policy: groups cut anew without changing the environments."""

import numpy as np
import pytest

from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.envs.vector.regrouped import regrouped
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.testing.env_contract import check_environment
from relayrl.testing.toy_environments import Herd

SPREAD = "native:simple_spread"


def make(env: str, sharing, num_envs: int = 3) -> VectorEnvironment:
    return make_vector(env, EnvSettings(num_envs=num_envs, sharing=sharing))


@pytest.mark.parametrize("env", [SPREAD, "native:simple_tag", "relayrl.testing.toy_environments:DyingAgents"])
def test_separate_groups_keep_the_contract(env):
    check_environment(lambda count: make(env, "separate", count)).raise_if_failed()


def test_separate_gives_every_agent_a_group():
    env = make(SPREAD, "separate")
    assert {name: group.agent_ids for name, group in env.groups.items()} == {
        "agent_0": ("agent_0",),
        "agent_1": ("agent_1",),
        "agent_2": ("agent_2",),
    }


def test_masks_of_final_observations_go_with_their_agents():
    herd = Herd()
    herd.init_num_envs(1)
    env = regrouped(herd, "separate")
    env.reset(seed=0)
    masks = {}
    for _ in range(5):
        step = env.step(
            {"sheep_0": np.zeros((1, 1), int), "sheep_1": np.zeros((1, 1), int), "dog": np.zeros((1, 1, 2))}
        )
        masks |= {name: got.final.action_mask for name, got in step.groups.items() if got.final is not None}
    # sheep_0 ends in step 2, sheep_1 in step 5; what is forbidden is the number of the step modulo 3.
    assert masks["sheep_0"].tolist() == masks["sheep_1"].tolist() == [[True, True, False]]
    assert masks["dog"] is None


def test_the_envs_are_the_same_however_agents_are_grouped():
    shared, mapped = make(SPREAD, "shared"), make(SPREAD, {"agent_0": "odd", "agent_1": "even", "agent_2": "odd"})
    shared.reset(seed=1)
    mapped.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 5, (3, 3))
        one = shared.step({"agent": actions}).groups["agent"]
        other = mapped.step({"odd": actions[:, [0, 2]], "even": actions[:, [1]]}).groups
        np.testing.assert_array_equal(one.obs[:, [0, 2]], other["odd"].obs)
        np.testing.assert_array_equal(one.reward[:, [1]], other["even"].reward)
        if one.final is not None:
            kept = one.final.agent != 1
            np.testing.assert_array_equal(one.final.obs[kept], other["odd"].final.obs)
            assert other["odd"].final.agent.tolist() == [0, 1] * 3
            assert other["even"].final.agent.tolist() == [0] * 3


@pytest.mark.parametrize(
    ("sharing", "error", "hint"),
    [
        ({"agent_0": "a", "agent_1": "a"}, ConfigError, "agent_2"),
        ({"agent_0": "a", "agent_1": "a", "agent_2": "a", "agent_9": "a"}, UnknownNameError, "agent_9"),
    ],
)
def test_a_mapping_must_name_every_agent_once(sharing, error, hint):
    with pytest.raises(error, match=hint):
        make(SPREAD, sharing)


def test_agents_with_different_spaces_cannot_share():
    agents = [a for g in make("native:simple_tag", "shared").groups.values() for a in g.agent_ids]
    with pytest.raises(ConfigError, match="spaces differ"):
        make("native:simple_tag", dict.fromkeys(agents, "everybody"))
