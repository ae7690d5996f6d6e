"""What agents record of a step is what its actor gave for it, or nothing: never a number of another step."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from gymnasium import spaces

from relayrl import AgentBuilder, RelayRLTrainer, SACParams, TrainerArgs, Trajectory, open_source
from relayrl.extend import Actor, CustomPolicy

OBSERVATIONS, ACTIONS = spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(4)
OBS = np.zeros((2, 3), np.float32)


def sac(folder: Path, **params: int) -> object:
    args = TrainerArgs("env", str(folder), observation_space=OBSERVATIONS, action_space=ACTIONS)
    return RelayRLTrainer.sac(args, SACParams(**params))


def recorded(model: object, url: str, *newer: object, num_steps: int = 6) -> list[Trajectory]:
    """Two actors that play `num_steps` with each model in turn, then end."""
    with AgentBuilder().actor_count(2).default_model(model).sink(url).build() as agent:
        ids = agent.get_actor_ids()
        for version, following in enumerate([None, *newer]):
            if following is not None:
                agent.update_model(following, version=100 + version)
            for step in range(num_steps):
                one_by_one = step % 2
                for part in [[actor] for actor in ids] if one_by_one else [ids]:
                    agent.request_action(part, OBS[: len(part)])
        agent.flag_last_action(ids, reward=np.ones(2))
        agent.flush()
    with open_source(url) as source:
        return list(source)


def test_uniform_draws_of_a_warm_up_have_their_log_probability(tmp_path):
    warming = str(sac(tmp_path / "a", learning_starts=50).acquire_model("onnx").save(tmp_path / "warming.onnx"))
    for trajectory in recorded(warming, "memory:warming"):
        np.testing.assert_allclose(trajectory.logp, math.log(1 / 4), rtol=1e-6)


class Silent(Actor):
    """Draws, and does not say how likely that was."""

    def __init__(self, head: object) -> None:
        self.head = head

    def distribution(self, obs, mask=None):
        return np.full((len(obs), 4), math.log(1 / 4), np.float32)

    def decide(self, obs, mask, memory, rng):
        return super().decide(obs, mask, memory, rng)._replace(logp=None)


class Valued(Silent):
    """Gives a value as well."""

    gives_value = True

    def decide(self, obs, mask, memory, rng):
        return super().decide(obs, mask, memory, rng)._replace(value=np.full(len(obs), 7.0, np.float32))


def test_a_step_without_a_log_probability_never_has_that_of_another(tmp_path):
    head = sac(tmp_path).policies["agent"].head
    speaking = type("Speaking", (Silent,), {"decide": Actor.decide})(head)
    parts = recorded(CustomPolicy(speaking, OBSERVATIONS), "memory:silent", CustomPolicy(Silent(head), OBSERVATIONS))
    for trajectory in parts:
        np.testing.assert_allclose(trajectory.logp[:6], math.log(1 / 4), rtol=1e-6)
        assert np.isnan(trajectory.logp[6:]).all()
        assert len(trajectory.logp) == 12


def test_values_of_an_actor_that_says_so_are_recorded(tmp_path):
    head = sac(tmp_path).policies["agent"].head
    for trajectory in recorded(CustomPolicy(Valued(head), OBSERVATIONS), "memory:valued"):
        assert trajectory.value.tolist() == [7.0] * 6
    forgetful = type("Forgetful", (Valued,), {"gives_value": False})(head)
    for trajectory in recorded(CustomPolicy(forgetful, OBSERVATIONS), "memory:forgetful"):
        assert trajectory.value is None
