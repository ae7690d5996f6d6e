"""Whole rollouts in one call are those that single steps give, bit for bit, and are left alone where anything is another's."""

from functools import cache
from unittest import mock

import numpy as np
import pytest

import relayrl.accelerator.native_rollouts as native_rollouts_module
from relayrl.accelerator import on_policy_kernels
from relayrl.accelerator.live_actor import frozen_actor, live_actor
from relayrl.accelerator.mlp_actor import MlpActor
from relayrl.accelerator.native_rollouts import native_rollouts
from relayrl.compiled import loader
from relayrl.compiled.drawn_ahead import MIN_THREADS
from relayrl.data.columns import COLUMNS, OPTIONAL_COLUMNS
from relayrl.envs import native
from relayrl.envs.native.batched_environment import BatchedEnvironment
from relayrl.envs.native.classic.cart_pole import CartPoleSettings, CartPoleWorlds
from relayrl.envs.native.classic.cart_pole import blueprint as cart_pole_blueprint
from relayrl.errors import ConfigError
from relayrl.extend import make_run_parts
from relayrl.models.networks.built_in import BuiltIns
from relayrl.models.policy import parameter_hash
from relayrl.runtime.collector import Collector

pytestmark = pytest.mark.skipif(loader.kernels() is None, reason="no compiled kernels")

CASES = {
    "carts": ("native:CartPole", "ppo", 64, 40, {}),
    "carts that end late and early": ("native:CartPole", "ppo", 7, 33, {"max_episode_steps": 13}),
    "one cart": ("native:CartPole", "ppo", 1, 40, {"sutton_barto_reward": True}),
    "pendulums": ("native:Pendulum", "ppo", 150, 20, {"max_episode_steps": 7}),
    "central critic": ("native:simple_spread", "mappo", 30, 32, {"continuous_actions": True}),
    "choices": ("native:simple_spread", "mappo", 5, 30, {"max_cycles": 4}),
    "neighbours": ("native:simple_spread", "ippo", 150, 20, {"N": 4, "num_agent_neighbors": 2, "max_cycles": 9}),
    "ends": ("native:simple_spread", "ippo", 40, 30, {"N": 1, "terminate_on_success": True, "max_cycles": 11}),
}
NUM_BLOCKS = 3


def parts_of(case, **settings):
    env, algo, num_envs, horizon, options = CASES[case]
    shape = {"environment.num_envs": num_envs, "trainer.time_horizon": horizon, "environment.options": options}
    return make_run_parts(env, algo=algo, settings={**shape, "seed": 3, "params.num_minibatches": 3, **settings})


def columns_of(rollouts):
    """Copies of everything that a rollout holds, by a group's number."""
    found = {}
    for group, rollout in enumerate(rollouts.values()):
        names = (*COLUMNS, *OPTIONAL_COLUMNS, "first_episode", "first_step", "next_episode", "waits")
        arrays = {name: getattr(rollout, name) for name in names}
        arrays |= {f"successors {name}": getattr(rollout.successors, name) for name in ("step", "lane", "obs")}
        found |= {f"{group} {name}": np.array(array) for name, array in arrays.items() if array is not None}
    return found


def all_that_follows(parts, num_blocks=NUM_BLOCKS):
    """Blocks, the second of which is shorter, with what is known of episodes, and the state behind each of them."""
    found = []
    for block in range(num_blocks):
        num_steps = parts.collector._num_steps // 2 if block == 1 else None
        rollouts = parts.collector.collect(parts.trainer.policy_version, num_steps)
        ended = parts.collector.take_ended()
        state = parts.collector.state_dict()
        (builder,), (own_returns,) = state["builders"].values(), ended.agent_returns.values()
        arrays = columns_of(rollouts) | state["environment"] | state["episodes"] | builder
        returns = np.concatenate([np.zeros((0, 1)), *(own[:, :1] for own in own_returns)])
        arrays |= {"returns": returns, "lengths": np.array(ended.lengths), "began": np.array(ended.began_at)}
        found.append((arrays, ended.returns, ended.num_steps, state["rng"]))
        parts.trainer.receive(rollouts)
        parts.trainer.advance()
    return found, {name: parameter_hash(policy) for name, policy in parts.policies.items()}


def require_same(found, expected):
    for (arrays, *rest), (others, *other_rest) in zip(found[0], expected[0], strict=True):
        assert rest == other_rest
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            assert (array.dtype, array.shape) == (others[name].dtype, others[name].shape), name
            assert array.tobytes() == others[name].tobytes(), name
    assert found[1] == expected[1]


@cache
def step_by_step(case):
    parts = parts_of(case)
    parts.collector._at_once = None
    found = all_that_follows(parts)
    parts.close()
    return found


@pytest.fixture(autouse=True)
def own_number_of_threads():
    yield
    loader.set_num_threads(None)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("case", CASES)
def test_rows_and_what_is_learned_are_those_of_single_steps(case, threads):
    expected = step_by_step(case)
    loader.set_num_threads(threads)
    parts = parts_of(case)
    assert parts.collector._at_once is not None
    require_same(all_that_follows(parts), expected)
    parts.close()


@pytest.mark.parametrize("case", ["pendulums", "central critic"])
def test_noise_that_was_drawn_ahead_is_the_same(case, monkeypatch):
    monkeypatch.setattr(native_rollouts_module, "MIN_NUMBERS_AHEAD", 1)
    monkeypatch.setattr(on_policy_kernels, "MIN_ORDER_AHEAD", 1)
    loader.set_num_threads(MIN_THREADS)
    parts = parts_of(case)
    require_same(all_that_follows(parts), step_by_step(case))
    assert parts.collector._at_once._next_noise is not None
    parts.close()


def test_noise_that_was_drawn_ahead_is_not_used_by_a_generator_that_went_on(monkeypatch):
    monkeypatch.setattr(native_rollouts_module, "MIN_NUMBERS_AHEAD", 1)
    loader.set_num_threads(MIN_THREADS)
    found = []
    for at_once in (True, False):
        parts = parts_of("pendulums")
        if not at_once:
            parts.collector._at_once = None
        columns = [columns_of(parts.collector.collect(0))]
        parts.collector._rng.random()
        columns.append(columns_of(parts.collector.collect(0)))
        before = parts.collector.state_dict()
        columns.append(columns_of(parts.collector.collect(0)))
        parts.collector.load_state_dict(before, seed=0)
        columns.append(columns_of(parts.collector.collect(0)))
        found.append(columns)
        parts.close()
    for own, other in zip(*found, strict=True):
        assert all(array.tobytes() == other[name].tobytes() for name, array in own.items())


@pytest.mark.parametrize("case", CASES)
def test_cases_end_and_are_cut_off(case):
    blocks = [arrays for arrays, *_ in step_by_step(case)[0]]
    ended = sum(block["0 truncated"].sum() + block["0 terminated"].sum() for block in blocks)
    assert ended > 0
    if case in ("carts", "ends"):
        assert sum(block["0 terminated"].sum() for block in blocks) > 0
    if case in ("pendulums", "ends", "carts that end late and early"):
        assert sum(block["0 truncated"].sum() for block in blocks) > 0


@pytest.mark.parametrize("continues_at_once", [True, False])
@pytest.mark.parametrize("case", ["carts", "pendulums", "central critic"])
def test_a_collector_goes_on_where_the_other_stopped(case, continues_at_once):
    expected = step_by_step(case)[0][1:]
    first, second = parts_of(case), parts_of(case)
    (second if not continues_at_once else first).collector._at_once = None
    first.trainer.receive(first.collector.collect(0))
    first.trainer.advance()
    first.collector.take_ended()
    assert second.collector.load_state_dict(first.collector.state_dict(), seed=0)
    second.trainer.load_state_dict(first.trainer.state_dict())
    num_steps = second.collector._num_steps // 2
    found = columns_of(second.collector.collect(second.trainer.policy_version, num_steps))
    for name, array in found.items():
        assert array.tobytes() == expected[0][0][name].tobytes(), name
    first.close()
    second.close()


@pytest.mark.parametrize("case", ["carts", "pendulums", "central critic"])
def test_numbers_that_are_none_are_the_same_ones(case):
    found = []
    for at_once in (True, False):
        parts = parts_of(case)
        if not at_once:
            parts.collector._at_once = None
        for policy in parts.policies.values():
            policy.actor.linears()[-1].bias.data[0] = float("nan")
        found.append(columns_of(parts.collector.collect(0)))
        parts.close()
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], name)


def test_numpys_loops_give_numpys_numbers():
    kernels = loader.kernels()
    x = np.linspace(-80, 80, 999, dtype=np.float32)
    for number, function in enumerate((np.sin, np.cos, np.exp, np.log1p)):
        given = np.exp(x) if function is np.log1p else x
        for count in (0, 1, 7, 16, 33, 999):
            out = np.empty(count, np.float32)
            assert kernels.numpy_function(number, np.ascontiguousarray(given[-count or 999 :][:count]), out)
            np.testing.assert_array_equal(out.view(np.int32), function(given[-count or 999 :][:count]).view(np.int32))


# ---- what is left to single steps ----------------------------------------------------------------------------------


class CountedEnvironment(BatchedEnvironment):
    num_steps = 0

    def step(self, actions):
        self.num_steps += 1
        return super().step(actions)


class HeavyCarts(CartPoleWorlds):
    def advance(self, actions):
        super().advance(actions)
        self._motion *= 0.5


class OwnActor(MlpActor):
    pass


class OwnGenerator(np.random.Generator):
    pass


def actor_for(env):
    parts = make_run_parts("native:CartPole", algo="ppo", settings={"environment.num_envs": 1})
    parts.close()
    (policy,) = parts.policies.values()
    return live_actor(policy), policy


def with_envs(env, num_envs=4):
    env.init_num_envs(num_envs)
    return env


def collector_of(env, actor, rng=None):
    rng = np.random.default_rng(0) if rng is None else rng
    return Collector(env, {"agent": actor}, num_steps=6, seed=0, rng=rng, records_logp=True)


def test_unchanged_ones_are_taken():
    env = with_envs(native.make("CartPole"))
    assert native_rollouts(env, actor_for(env)[0]) is not None


def test_a_subclass_of_the_environment_is_stepped():
    env = with_envs(CountedEnvironment(cart_pole_blueprint(CartPoleSettings())))
    collector = collector_of(env, actor_for(env)[0])
    collector.collect(0)
    assert env.num_steps == 6


def test_a_subclass_of_the_worlds_is_stepped():
    blueprint = cart_pole_blueprint(CartPoleSettings())
    build = blueprint.build
    object.__setattr__(blueprint, "build", lambda count: HeavyCarts(*build.args, count))
    env = with_envs(BatchedEnvironment(blueprint))
    assert env.worlds.compiled is None
    assert native_rollouts(env, actor_for(env)[0]) is None


@pytest.mark.parametrize("options", [{"dtype": "float64"}])
def test_other_arrays_are_stepped(options):
    env = with_envs(native.make("CartPole", **options))
    assert native_rollouts(env, actor_for(env)[0]) is None


def test_other_actors_act(monkeypatch):
    env = with_envs(native.make("CartPole"))
    actor, policy = actor_for(env)
    assert native_rollouts(env, frozen_actor(policy, "cpu")) is None
    actor.__class__ = OwnActor
    assert native_rollouts(env, actor) is None
    actor.__class__ = MlpActor
    actor.decide = lambda *given: MlpActor.decide(actor, *given)
    assert native_rollouts(env, actor) is None
    del actor.decide
    monkeypatch.setattr(MlpActor, "decide", lambda self, *given: None)
    assert native_rollouts(env, actor) is None


def test_what_was_changed_before_anybody_looked_is_not_built_in(monkeypatch):
    monkeypatch.setattr(BatchedEnvironment, "step", lambda self, actions: None)
    monkeypatch.setattr(MlpActor, "decide", mock.Mock())
    env = with_envs(native.make("CartPole"))
    actor, _ = actor_for(env)
    built_in = BuiltIns(BatchedEnvironment, MlpActor, CartPoleWorlds)
    assert env.worlds in built_in
    assert env not in built_in
    assert actor not in built_in


def test_classes_that_are_changed_later_are_asked(monkeypatch):
    env, calls = with_envs(native.make("CartPole")), []
    collector, own = collector_of(env, actor_for(env)[0]), CartPoleWorlds.advance
    monkeypatch.setattr(CartPoleWorlds, "advance", lambda *given: calls.append(1) or own(*given))
    collector.collect(0)
    assert len(calls) == 6


@pytest.mark.parametrize("case", ["carts", "pendulums", "central critic"])
def test_worlds_have_the_last_rewards(case):
    parts = parts_of(case)
    block = parts.collector.collect(0)
    for name, rewards in parts.env.worlds.rewards.items():
        np.testing.assert_array_equal(rewards.reshape(-1), block[name].reward[-1])
    parts.close()


def test_an_actor_or_environment_that_is_changed_later_is_asked():
    env = with_envs(native.make("CartPole"))
    actor, _ = actor_for(env)
    collector, calls = collector_of(env, actor), []
    places = (env, "step"), (env.worlds, "advance"), (actor, "decide"), (actor.head, "to_environment")
    for thing, name in places:
        own = getattr(thing, name)
        setattr(thing, name, lambda *given, own=own, name=name: calls.append(name) or own(*given))
        collector.collect(0)
        assert calls.count(name) == 6
        delattr(thing, name)
    calls.clear()
    collector.collect(0)
    assert not calls


def test_a_generator_of_another_class_draws_for_itself():
    env = with_envs(native.make("CartPole"))
    collector = collector_of(env, actor_for(env)[0], OwnGenerator(np.random.PCG64(0)))
    assert not collector._at_once.are_possible(collector._rng)
    collector.collect(0)


def test_several_groups_and_hooks_are_stepped():
    parts = make_run_parts("native:simple_tag", algo="ppo", settings={"environment.num_envs": 2})
    assert parts.collector._at_once is None
    parts.close()
    env = with_envs(native.make("CartPole"))
    actor, _ = actor_for(env)
    given = {"num_steps": 3, "seed": 0, "rng": np.random.default_rng(0)}
    assert Collector(env, {"agent": actor}, on_ended=lambda *_: None, **given)._at_once is None


def test_options_that_change_between_episodes_are_obeyed():
    found = []
    for at_once in (True, False):
        parts = parts_of("pendulums")
        if not at_once:
            parts.collector._at_once = None
        found.append([columns_of(parts.collector.collect(0))])
        parts.env.set_parameters({"g": np.full(parts.env.num_envs, 3.0)})
        found[-1] += [columns_of(parts.collector.collect(0)) for _ in range(2)]
        parts.close()
    for own, other in zip(*found, strict=True):
        assert all(array.tobytes() == other[name].tobytes() for name, array in own.items())


def test_without_kernels_nothing_is_taken(monkeypatch):
    env = with_envs(native.make("CartPole"))
    actor, _ = actor_for(env)
    rollouts = native_rollouts(env, actor)
    monkeypatch.setenv(loader.VARIABLE, loader.OFF)
    assert native_rollouts(env, actor) is None
    assert not rollouts.are_possible(np.random.default_rng())


@pytest.mark.parametrize("num_steps", [0, 7])
def test_a_block_that_cannot_be_is_refused(num_steps):
    env = with_envs(native.make("CartPole"))
    collector = collector_of(env, actor_for(env)[0])
    with pytest.raises(ConfigError, match=r"build\(\)"):
        collector.collect(0, num_steps)
