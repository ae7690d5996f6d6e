"""An actor may keep what it makes of parameters while they are held: the same numbers, and live ones again after it."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.live_actor import live_actor
from relayrl.accelerator.mlp_actor import MlpActor
from relayrl.compiled import loader
from relayrl.envs.environment_registry import make_vector
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import EnvironmentFailedError
from relayrl.models.acting.actor import Actor, Decision
from relayrl.models.acting.lane_slices import SlicedActor
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic
from relayrl.runtime.collector import Collector
from relayrl.runtime.evaluation import evaluate

OBS = spaces.Box(-3, 3, (5,), np.float32)
ACTIONS = {
    "choice": spaces.Discrete(4),
    "choices": spaces.MultiDiscrete([2, 3]),
    "normal": spaces.Box(-1, 1, (3,), np.float32),
}
TOYS = "relayrl.testing.toy_environments"


@pytest.fixture(params=[1, 3])
def threads(request):
    loader.set_num_threads(request.param)
    yield request.param
    loader.set_num_threads(None)


def made(action: spaces.Space = ACTIONS["choice"], **network) -> tuple[ActorCritic, Actor]:
    settings = NetworkSettings(hidden_sizes=(256, 256), **network)
    policy = ActorCritic(OBS, action, settings, torch.Generator().manual_seed(1))
    actor = live_actor(policy)
    assert isinstance(actor, MlpActor)
    return policy, actor


def seen(num_rows: int) -> np.ndarray:
    return np.random.default_rng(num_rows).normal(size=(num_rows, 5)).astype(np.float32)


def change(policy: ActorCritic) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))


def decided(actor: Actor, num_rows: int) -> Decision:
    return actor.decide(seen(num_rows), None, None, np.random.default_rng(7))


def assert_equal(one: Decision, other: Decision) -> None:
    np.testing.assert_array_equal(one.action, other.action)
    np.testing.assert_array_equal(one.logp, other.logp)


@pytest.mark.parametrize("name", ACTIONS)
def test_holding_changes_no_bit(name, threads):
    _, actor = made(ACTIONS[name])
    for num_rows in (1, 2, 3, 8, 40, 255, 256, 600):  # from 256 on, the GIL is free meanwhile
        live, parameters = decided(actor, num_rows), actor.distribution(seen(num_rows))
        actor.hold()
        assert_equal(decided(actor, num_rows), live)
        np.testing.assert_array_equal(actor.distribution(seen(num_rows)), parameters)
        actor.release()
        assert_equal(decided(actor, num_rows), live)


def test_every_hold_reads_the_parameters_again(threads):
    policy, actor = made()
    actor.hold()
    first = decided(actor, 8)
    change(policy)  # nobody may: it shows that held parameters are kept
    assert_equal(decided(actor, 8), first)
    actor.release()
    released = decided(actor, 8)
    assert not np.array_equal(released.logp, first.logp)
    actor.hold()
    assert_equal(decided(actor, 8), released)
    actor.release()


def test_a_held_actor_follows_a_change_of_the_instruction_set(monkeypatch):
    """What was taken over has the layout of the kernels that took it."""
    _, actor = made()
    actor.hold()
    for name in loader.kernels().instruction_sets():
        monkeypatch.setenv(loader.VARIABLE, name)
        assert loader.kernels() is not None
        np.testing.assert_allclose(decided(actor, 8).logp, decided(made()[1], 8).logp, rtol=0, atol=1e-4)
    actor.release()
    monkeypatch.undo()
    assert loader.kernels() is not None


def test_actors_that_act_by_another_one_hold_it():
    policy, actor = made()
    sliced = SlicedActor(actor, 0, 4, 8)
    sliced.hold()
    held = decided(actor, 8)
    change(policy)
    assert_equal(decided(actor, 8), held)
    sliced.release()
    assert not np.array_equal(decided(actor, 8).logp, held.logp)


class Watched(Actor):
    """Acts by another one, and notes when it is held."""

    def __init__(self, actor: Actor) -> None:
        self.actor, self.head, self.calls = actor, actor.head, []

    def hold(self) -> None:
        self.calls.append("hold")

    def release(self) -> None:
        self.calls.append("release")

    def distribution(self, obs, mask=None):
        if self.calls[-1] != "hold":
            raise AssertionError("acts without holding the parameters")
        return self.actor.distribution(obs, mask)


def collecting(env: str, **settings) -> tuple[Watched, Collector]:
    vector = make_vector(f"{TOYS}:{env}", EnvSettings(num_envs=2, **settings))
    group = vector.groups["agent"]
    generator = torch.Generator().manual_seed(0)
    policy = ActorCritic(group.observation_space, group.action_space, NetworkSettings(), generator)
    watched = Watched(live_actor(policy))
    return watched, Collector(vector, {"agent": watched}, num_steps=5, seed=0, rng=np.random.default_rng(0))


def test_a_rollout_holds_the_parameters_from_its_first_to_its_last_step():
    watched, collector = collecting("CountingEnv")
    collector.collect(0)
    collector.collect(1)
    assert watched.calls == ["hold", "release", "hold", "release"]


def test_a_rollout_that_fails_holds_nothing_any_more():
    watched, collector = collecting("Crashing", options={"at_step": 3})
    with pytest.raises(EnvironmentFailedError):
        collector.collect(0)
    assert watched.calls == ["hold", "release"]


def test_an_evaluation_holds_the_parameters():
    watched, _ = collecting("CountingEnv")
    vector = make_vector(f"{TOYS}:CountingEnv", EnvSettings(num_envs=2))
    evaluate(vector, {"agent": watched}, episodes=2, seed=0)
    assert watched.calls == ["hold", "release"]
