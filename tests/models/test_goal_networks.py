"""`network.goal_conditioning: hyper`: goals give the weights of the last hidden layer."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import relayrl
from relayrl import NetworkSettings, PPOParams
from relayrl.algorithms.ppo import PPO
from relayrl.errors import ConfigError
from relayrl.models.networks.mlp import MLP
from relayrl.models.networks.network_factory import BuiltInNetworks, GoalNetwork
from relayrl.models.networks.observation_encoder import ObservationEncoder

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
GOALS = spaces.Dict({"position": BOX, "goal_signal_color": spaces.Discrete(2)})


def network(space, *, hyper=True, **settings):
    given = NetworkSettings(goal_conditioning="hyper" if hyper else "none", **{"hidden_sizes": (8, 6)} | settings)
    return BuiltInNetworks(given)(ObservationEncoder(space), 4, 1.0, torch.Generator().manual_seed(0))


def test_the_goal_changes_what_the_rest_is_multiplied_by():
    """Of two rows that differ in the goal, the slope by the position differs too; of an MLP's first layer it is the same."""
    net = network(GOALS, activation="relu", hidden_sizes=(6,))
    assert isinstance(net, GoalNetwork)
    encoder = ObservationEncoder(GOALS)
    position = torch.tensor([[0.3, -0.2, 0.5]] * 2, requires_grad=True)
    seen = encoder({"goal_signal_color": torch.tensor([0, 1]), "position": position})
    assert net._goal_columns == [0, 1]  # keys of a Dict are sorted
    weights = net.weights(net.hyper(seen[..., :2])).detach().reshape(2, 5, 6)
    expected = torch.relu(torch.einsum("ri,rij->rj", seen, weights) + net.bias) @ net.output.weight.T + net.output.bias
    torch.testing.assert_close(net(seen), expected)
    assert (weights[0] - weights[1]).abs().max() > 1e-3
    assert net(seen[None]).shape == (1, 2, 4)  # any leading axes


@pytest.mark.parametrize("space", [BOX, spaces.Dict({"position": BOX, "goals": BOX})])
def test_without_goals_networks_are_those_of_none(space):
    hyper, plain = network(space), network(space, hyper=False)
    assert type(hyper) is MLP
    assert all(torch.equal(a, b) for a, b in zip(hyper.parameters(), plain.parameters(), strict=True))
    assert type(network(GOALS, hyper=False)) is MLP


def test_what_cannot_be_conditioned_is_refused():
    pictures = spaces.Dict({"picture": spaces.Box(0, 255, (36, 36, 3), np.uint8), "desired_goal": BOX})
    settings = NetworkSettings(goal_conditioning="hyper", encoder="simple")
    with pytest.raises(ConfigError, match=r"images; set network\.goal_conditioning"):
        PPO.make_policy(pictures, spaces.Discrete(2), settings, PPOParams(), torch.Generator(), None, None)
    with pytest.raises(ConfigError, match="hidden layer"):
        network(GOALS, hidden_sizes=())
    with pytest.raises(ValueError, match="built-in networks"):
        NetworkSettings(goal_conditioning="hyper", kernel="mine")


class Sought(relayrl.ScalarEnvironment):
    """The goal says which of two actions is right for the sign of what is seen."""

    observation_space = spaces.Dict({"desired_goal": spaces.Discrete(2), "observation": spaces.Discrete(2)})
    action_space = spaces.Discrete(2)

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def _draw(self):
        self._seen = {key: int(self._rng.integers(2)) for key in ("desired_goal", "observation")}
        return self._seen

    def reset(self, *, seed=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return relayrl.extend.ScalarReset(self._draw(), {})

    def step(self, action):
        right = self._seen["desired_goal"] ^ self._seen["observation"]
        return relayrl.extend.ScalarStep(self._draw(), float(action == right), True, False, {})

    def build_observation(self):
        return self._seen


def test_a_run_with_hyper_learns_and_is_exported(tmp_path):
    settings = {
        "environment.num_envs": 8,
        "trainer.time_horizon": 32,
        "network.hidden_sizes": [16],
        "network.goal_conditioning": "hyper",
        "params.pi_lr": 1e-2,
        "params.train_pi_iters": 4,
        "params.train_vf_iters": 4,
        "params.num_minibatches": 2,
        "threads": 1,
        "evaluation.episodes": 64,
    }
    run = relayrl.train(Sought, algo="ppo", steps=5_120, seed=1, run_dir=tmp_path, settings=settings, progress=False)
    assert run.result.mean_return > 0.9  # by an exclusive or of goal and observation
    loaded = relayrl.load_run(tmp_path).policy  # the exported file
    for goal in (0, 1):
        for seen in (0, 1):
            obs = {"desired_goal": np.int64(goal), "observation": np.int64(seen)}
            assert int(loaded.act(obs, None)) == goal ^ seen
