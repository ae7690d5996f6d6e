"""What a user calls: `policy.act` for one observation or rows, inside the action space, of runs, files and trainers."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import relayrl
from relayrl.errors import ConfigError, RelayRLError
from relayrl.models.acting.torch_actor import ScriptActor

QUICK = {"num_envs": 2, "time_horizon": 8, "hidden_sizes": [8], "evaluation.episodes": 0, "num_minibatches": 1}
QUICK |= {"train_pi_iters": 1, "train_vf_iters": 1}
WIDE = {"log_std_init": 3.0}
"""Draws far beyond every bound."""
MASKED = "pettingzoo:classic.tictactoe_v3"
NESTED = "relayrl.testing.toy_environments:NestedSpaces"
MEMORY = {"network.memory": {"kind": "lstm", "size": 4, "sequence_length": 4}}


def trained(env, path, algo="ppo", **settings) -> relayrl.Run:
    return relayrl.train(env, algo=algo, steps=32, run_dir=path, settings=QUICK | settings, progress=False)


class Uneven(gymnasium.Env):
    """Actions with bounds of their own in each dimension, in double precision."""

    observation_space = spaces.Box(-1.0, 1.0, (2, 3), np.float32)
    action_space = spaces.Box(np.array([-0.5, 0.0]), np.array([0.25, 4.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((2, 3), np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros((2, 3), np.float32), 1.0, False, False, {}


class Choices(Uneven):
    action_space = spaces.MultiDiscrete([3, 2], start=[5, 0])


class Offset(Uneven):
    action_space = spaces.Discrete(3, start=7)


class Switches(Uneven):
    action_space = spaces.MultiBinary(3)


@pytest.mark.parametrize("env", [Uneven, Choices, Offset, Switches])
def test_actions_are_inside_the_space_however_they_are_drawn(env, tmp_path):
    run = trained(env, tmp_path / "run", **(WIDE if env is Uneven else {}))
    rng = np.random.default_rng(0)
    one = env.observation_space.sample()
    for _ in range(50):
        assert env.action_space.contains(run.policy.act(one, None, rng))
    assert env.action_space.contains(run.policy.act(one))
    assert env.action_space.contains(run.policy.act_greedily(one))
    many = run.policy.act(np.stack([one, one]), rng=rng)
    assert [env.action_space.contains(action) for action in many] == [True, True]
    assert np.array_equal(run.policy.act(one[None])[0], run.policy.act(one))


def test_a_gymnasium_environment_is_played_without_any_glue(tmp_path):
    run = trained("Pendulum-v1", tmp_path / "run", **WIDE)
    env = gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = run.policy.act(obs, rng=rng)
        assert env.action_space.contains(action)
        obs, *_ = env.step(action)
    env.close()


def test_nested_observations_may_come_alone_and_in_any_order(tmp_path):
    run = trained(NESTED, tmp_path / "run")
    space = run.policy.metadata.observation_space
    assert isinstance(space, spaces.Dict)
    one = space.sample()
    shuffled = dict(reversed(list(one.items())))
    assert np.array_equal(run.policy.act(one), run.policy.act(shuffled))
    with pytest.raises(ConfigError, match="obs"):
        run.policy.act(dict(list(one.items())[1:]))


def test_numbers_of_other_types_are_taken(tmp_path):
    run = trained("CartPole-v1", tmp_path / "run")
    obs = [0.01, -0.02, 0.03, 0.04]
    assert run.policy.act(obs) == run.policy.act(np.array(obs, np.float64)) == run.policy.act(np.array(obs, np.float32))
    with pytest.raises(ConfigError, match=r"shape \(4,\).*got \(3,\)"):
        run.policy.act([0.0, 0.0, 0.0])
    lake = trained("FrozenLake-v1", tmp_path / "lake")
    assert lake.policy.metadata.action_space.contains(lake.policy.act(11))


def test_a_single_mask_goes_with_a_single_observation(tmp_path):
    run = trained(MASKED, tmp_path / "run")
    space, rng = run.policy.metadata.observation_space, np.random.default_rng(0)
    for allowed in range(9):
        mask = np.arange(9) == allowed
        assert run.policy.act(space.sample(), mask) == allowed
        assert run.policy.act(space.sample(), mask.astype(np.int8), rng) == allowed
    with pytest.raises(RelayRLError, match="mask"):
        run.policy.act(space.sample())


def test_a_memory_is_handed_from_step_to_step(tmp_path):
    run = trained("CartPole-v1", tmp_path / "run", **MEMORY)
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    memory, rows = None, None
    for obs in observations:
        action, memory = run.policy.act_remembering(obs, memory)
        actions, rows = run.policy.act_remembering(np.stack([obs, obs]), rows)
        assert actions.tolist() == [action, action]
        assert memory.shape == (run.policy.memory_width,)
        np.testing.assert_allclose(rows[1], memory, rtol=1e-5)
    decision = run.policy.decide(observations[:1], None, np.zeros((1, run.policy.memory_width), np.float32), None)
    np.testing.assert_allclose(run.policy.act_remembering(observations[0], None)[1], decision.memory[0], rtol=1e-5)
    with pytest.raises(ConfigError, match="act_remembering"):
        run.policy.act(observations[0])


def test_what_is_stored_stays_unclipped(tmp_path):
    run = trained(Uneven, tmp_path / "run", **WIDE)
    rows = np.zeros((200, 2, 3), np.float32)
    drawn = run.policy.decide(rows, None, None, np.random.default_rng(0)).action
    acted = run.policy.act(rows, None, np.random.default_rng(0))
    assert drawn.max() > 4.0
    np.testing.assert_allclose(acted, np.clip(drawn, Uneven.action_space.low, Uneven.action_space.high))


@pytest.mark.parametrize("algo", ["ddpg", "td3"])
@pytest.mark.parametrize("file_format", ["onnx", "torchscript"])
def test_a_trainers_model_keeps_its_exploration_noise(algo, file_format, tmp_path):
    params = {"ddpg": relayrl.DDPGParams(noise_scale=0.4), "td3": relayrl.TD3Params(exploration_noise=0.4)}[algo]
    trainer = getattr(relayrl.RelayRLTrainer, algo)(arguments(tmp_path), params)
    model = trainer.acquire_model(file_format)
    rows = np.zeros((4_000, 3), np.float32)
    actor = model.actor() if file_format == "onnx" else ScriptActor(model.path)
    drawn = actor.decide(rows, None, None, np.random.default_rng(0)).action
    # Half of the range is 2. The standard error of a deviation is σ / √(2n), 1.1% here.
    assert drawn.std() == pytest.approx(0.8, rel=0.05)
    assert actor.act_greedily(rows).std() < 1e-6
    assert actor.act(rows, None, np.random.default_rng(0)).std() == pytest.approx(0.8, rel=0.05)


def test_a_trainers_model_keeps_the_width_of_its_memory(tmp_path):
    memory = {"kind": "gru", "size": 6, "sequence_length": 4}
    args = arguments(tmp_path, network=relayrl.NetworkSettings(hidden_sizes=(8,), memory=memory))
    trainer = relayrl.RelayRLTrainer.ppo(args, relayrl.PPOParams())
    width = trainer.actor().memory_width
    assert width >= 6
    for actor in (trainer.acquire_model().actor(), ScriptActor(trainer.acquire_model("torchscript").path)):
        action, after = actor.act_remembering(np.zeros(3, np.float32), None)
        assert (actor.memory_width, after.shape) == (width, (width,))
        assert BOX.contains(action)
    live, after = trainer.actor().act_remembering(np.zeros(3, np.float32), None)
    np.testing.assert_allclose(live, action, rtol=1e-5)


BOX = spaces.Box(-2.0, 2.0, (1,), np.float32)


def arguments(path, **more) -> relayrl.TrainerArgs:
    return relayrl.TrainerArgs(
        env_dir="mine",
        save_model_path=path,
        observation_space=spaces.Box(-1.0, 1.0, (3,), np.float32),
        action_space=BOX,
        **more,
    )
