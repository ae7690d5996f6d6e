"""Facts that hold for every registered algorithm: registering one tests it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.registry import algorithms
from relayrl.data.trees import map_tree
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.envs.environment_registry import make_vector
from relayrl.errors import ConfigError
from relayrl.extend import Assembly, assemble
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.policy import parameter_hash
from relayrl.runtime.collector import Collector

SMALL = {"environment.num_envs": 2, "trainer.time_horizon": 20, "trainer.max_steps": 400, "network.hidden_sizes": (16,)}
QUICK = {
    "params.train_pi_iters": 2,
    "params.train_vf_iters": 2,
    "params.num_minibatches": 2,
    "params.learning_starts": 40,
    "params.batch_size": 16,
    "params.update_interval": 10,
    "params.train_iters": 2,
}
ENVIRONMENTS = {
    "continuous": ("native:simple_spread", {"continuous_actions": True}),
    "discrete": ("native:simple_spread", {}),
    "different agents": ("native:simple_tag", {"continuous_actions": True}),
    "dying agents": ("relayrl.testing.toy_environments:DyingAgents", {}),
    "masked": ("relayrl.testing.toy_environments:MaskedBandit", {}),
}
NO_CHOICES = {"ddpg", "iddpg", "maddpg", "td3", "itd3", "matd3"}


def settings_for(algo: str, kind: str, **flags) -> RunSettings:
    env, options = ENVIRONMENTS[kind]
    fields = algorithms()[algo].params.model_fields
    params = {key: value for key, value in QUICK.items() if key.removeprefix("params.") in fields}
    return build_run_settings(env, None, SMALL | params | {"environment.options": options, "algo": algo} | flags, [])


def train(settings: RunSettings, num_blocks: int = 6) -> Assembly:
    env = make_vector(settings.env, settings.environment)
    parts = assemble(settings, env)
    rng = np.random.default_rng(0)
    states = parts.trainer.needs_states
    collector = Collector(env, parts.actors, num_steps=parts.rollout_steps, seed=0, rng=rng, records_states=states)
    for _ in range(max(num_blocks, 120 // (parts.rollout_steps * env.num_envs))):
        parts.trainer.receive(collector.collect(parts.trainer.policy_version))
        metrics = parts.trainer.advance()
        assert all(np.isfinite(number) for number in metrics.values()), metrics
    env.close()
    return parts


def hashes(parts: Assembly) -> dict[str, str]:
    return {name: parameter_hash(policy) for name, policy in parts.policies.items()}


@pytest.fixture(params=sorted(algorithms()))
def algo(request) -> str:
    return request.param


TAKES_CHOICES = sorted(set(algorithms()) - NO_CHOICES)
CASES = [(algo, kind) for algo in sorted(algorithms()) for kind in ("continuous", "different agents")]
CASES += [(algo, kind) for algo in TAKES_CHOICES for kind in ("discrete", "dying agents", "masked")]


@pytest.mark.parametrize(("algo", "kind"), CASES)
def test_it_changes_its_policies_and_repeats(algo, kind):
    settings = settings_for(algo, kind)
    env = make_vector(settings.env, settings.environment)
    before = hashes(assemble(settings, env))
    first, second = (hashes(train(settings)) for _ in range(2))
    assert first == second
    # Where a mask leaves one choice at a time there is nothing to learn, and nothing may break.
    assert all(first[name] != before[name] for name in before) or kind == "masked"


@pytest.mark.parametrize("algo", sorted(NO_CHOICES))
def test_what_needs_box_actions_names_what_does_not(algo):
    settings = settings_for(algo, "discrete")
    with pytest.raises(ConfigError, match="use ppo, reinforce, impala or appo, or sac"):
        assemble(settings, make_vector(settings.env, settings.environment))


def test_each_agent_can_have_a_policy_of_its_own(algo):
    parts = train(settings_for(algo, "continuous", **{"environment.sharing": "separate"}))
    assert list(parts.policies) == ["agent_0", "agent_1", "agent_2"]
    assert len(set(hashes(parts).values())) == 3


def test_its_state_continues_bit_for_bit(algo, tmp_path):
    settings = settings_for(algo, "continuous")
    env = make_vector(settings.env, settings.environment)
    parts, copy = assemble(settings, env), assemble(settings, env)
    collector = Collector(env, parts.actors, num_steps=parts.rollout_steps, seed=0, rng=np.random.default_rng(0))

    def advance(*trained: Assembly) -> None:
        rollouts = collector.collect(0)
        for each in trained:
            each.trainer.receive(rollouts)
            each.trainer.advance()

    for _ in range(12):
        advance(parts)
    torch.save(parts.trainer.state_dict(), tmp_path / "state")
    copy.trainer.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    for _ in range(6):
        advance(parts, copy)
    assert hashes(parts) == hashes(copy)


EXPORTS = [(algo, "continuous") for algo in sorted(algorithms())] + [(algo, "masked") for algo in TAKES_CHOICES]


@pytest.mark.parametrize(("algo", "kind"), EXPORTS)
def test_its_exported_policy_gives_the_live_ones_numbers(algo, kind, tmp_path):
    parts = train(settings_for(algo, kind))
    for name, policy in parts.policies.items():
        masked = kind == "masked"
        spaces = (policy.observation_space, policy.action_space)
        metadata = PolicyMetadata("env", algo, name, 1, masked, *spaces, policy.head.kind, policy.head.noise_scale)
        path = export_policy(policy, metadata, Path(tmp_path / "model.onnx"), ExportFormat.ONNX)
        exported, live = ExportedActor(path), live_actor(policy)
        rng = np.random.default_rng(3)
        obs = rng.normal(size=(1000, *policy.observation_space.shape)).astype(np.float32)
        mask = None
        if masked:
            mask = rng.random((1000, policy.head.mask_width)) < 0.5
            mask[:, 0] = True
        np.testing.assert_allclose(exported.distribution(obs, mask), live.distribution(obs, mask), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(exported.act_greedily(obs, mask), live.act_greedily(obs, mask), rtol=1e-4, atol=1e-5)
        drawn = [actor.act(obs, mask, np.random.default_rng(1)) for actor in (exported, live)]
        np.testing.assert_allclose(drawn[0], drawn[1], rtol=1e-4, atol=1e-4)


def test_features_of_images_go_through_convolutions():
    from itertools import product

    from gymnasium import spaces

    from relayrl.models.network_settings import NetworkSettings
    from relayrl.models.networks.network_factory import ImageNetwork
    from relayrl.models.policy import ActorCritic

    for shape, shares in product(((84, 84, 4), (3, 20, 24), (40, 40)), (True, False)):
        space = spaces.Dict({"camera": spaces.Box(0, 255, shape, np.uint8), "speed": spaces.Box(-1, 1, (2,))})
        network = NetworkSettings(hidden_sizes=(8,), encoder_size=16, shared_encoder=shares)
        policy = ActorCritic(space, spaces.Discrete(3), network, torch.Generator().manual_seed(0))
        assert isinstance(policy.actor, ImageNetwork) is (not shares)
        obs = {"camera": np.zeros((5, *shape), np.uint8), "speed": np.zeros((5, 2), np.float32)}
        with torch.no_grad():
            distribution, value = policy(map_tree(torch.from_numpy, obs))
        assert distribution.shape == (5, 3)
        assert value.shape == (5,)
