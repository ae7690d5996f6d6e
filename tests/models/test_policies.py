"""Policies: live actors agree with each other and with exported files, for every action and observation space."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.live_actor import live_actor
from relayrl.accelerator.mlp_actor import MlpActor
from relayrl.data.trees import leaf_dtype, leaves, map_tree, space_leaves, unflatten
from relayrl.errors import DecodeError, ExportError
from relayrl.models.acting.torch_actor import TorchActor
from relayrl.models.exports import export
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.networks.observation_encoder import RunningNormalizer
from relayrl.models.policy import ActorCritic, parameter_hash

ACTIONS = {
    "discrete": spaces.Discrete(4, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
    "unbounded_box": spaces.Box(-np.inf, np.inf, (2,)),
}
OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (5,)),
    "float64": spaces.Box(-1, 1, (5,), np.float64),
    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": spaces.Discrete(6, start=-2),
    "nested": spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (3, 3), np.uint8),
            "rest": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 4]), spaces.Box(-9, 9, ()))),
        }
    ),
}
NUM_ROWS = 1000


def make_policy(observation_space, action_space, *, normalize: bool = False) -> ActorCritic:
    generator = torch.Generator().manual_seed(0)
    network = NetworkSettings(hidden_sizes=(16, 16), normalize_observations=normalize)
    policy = ActorCritic(observation_space, action_space, network, generator)
    with torch.no_grad():
        for parameter in policy.parameters():  # away from the nearly uniform initial policy
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.5)
    if policy.normalizer is not None:
        policy.normalizer.update(
            policy.encoder(map_tree(torch.from_numpy, sample(observation_space, 100, seed=3))) * 3 + 1
        )
    return policy


def sample(space, rows: int, seed: int = 0):
    flat = []
    for i, (_, leaf) in enumerate(space_leaves(space)):
        leaf.seed(seed + i)
        flat.append(np.stack([np.asarray(leaf.sample(), leaf_dtype(leaf)) for _ in range(rows)]))
    return unflatten(space, iter(flat))


def random_mask(policy: ActorCritic, rows: int) -> np.ndarray | None:
    width = policy.head.mask_width
    if width is None:
        return None
    mask = np.random.default_rng(5).random((rows, width)) < 0.6
    mask[:, [0, -1]] = True
    return mask


def metadata_of(policy: ActorCritic, *, masked: bool) -> PolicyMetadata:
    return PolicyMetadata("Env-v0", "ppo", "agent", 7, masked, policy.observation_space, policy.action_space)


@pytest.fixture(params=ACTIONS)
def action_space(request):
    return ACTIONS[request.param]


@pytest.fixture(params=OBSERVATIONS)
def observation_space(request):
    return OBSERVATIONS[request.param]


@pytest.mark.parametrize("normalize", [False, True])
def test_compiled_and_torch_acting_agree(observation_space, action_space, normalize):
    policy = make_policy(observation_space, action_space, normalize=normalize)
    obs = sample(observation_space, NUM_ROWS)
    mask = random_mask(policy, NUM_ROWS)
    compiled, in_torch = live_actor(policy).distribution(obs, mask), TorchActor(policy).distribution(obs, mask)
    np.testing.assert_allclose(compiled, in_torch, rtol=1e-4, atol=1e-5)


def test_a_compiled_actor_sees_the_newest_weights():
    policy = make_policy(OBSERVATIONS["vector"], ACTIONS["discrete"])
    actor, obs = live_actor(policy), sample(OBSERVATIONS["vector"], 4)
    assert isinstance(actor, MlpActor)
    before = actor.distribution(obs).copy()
    with torch.no_grad():
        policy.actor[0].bias.add_(1.0)
    after = actor.distribution(obs)
    assert not np.allclose(before, after)
    np.testing.assert_allclose(after, TorchActor(policy).distribution(obs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_onnx_gives_the_live_policys_numbers(observation_space, action_space, normalize, masked, tmp_path):
    policy = make_policy(observation_space, action_space, normalize=normalize)
    mask = random_mask(policy, NUM_ROWS) if masked else None
    masked = mask is not None
    path = export_policy(policy, metadata_of(policy, masked=masked), tmp_path / "m.onnx", ExportFormat.ONNX)
    exported, live = ExportedActor(path), TorchActor(policy)
    obs = sample(observation_space, NUM_ROWS, seed=11)
    want = live.distribution(obs, mask)
    np.testing.assert_allclose(exported.distribution(obs, mask), want, rtol=1e-4, atol=1e-5)
    greedy, live_greedy = exported.act_greedily(obs, mask), live.act_greedily(obs, mask)
    np.testing.assert_allclose(greedy, live_greedy, rtol=1e-4, atol=1e-5)
    drawn = exported.act(obs, mask, np.random.default_rng(1))
    np.testing.assert_allclose(drawn, live.act(obs, mask, np.random.default_rng(1)), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
def test_torchscript_gives_the_live_policys_numbers(observation_space, action_space, tmp_path):
    policy = make_policy(observation_space, action_space, normalize=True)
    path = export_policy(policy, metadata_of(policy, masked=False), tmp_path / "m.pt", ExportFormat.TORCHSCRIPT)
    extra = dict.fromkeys(metadata_of(policy, masked=False).as_strings(), "")
    module = torch.jit.load(path, _extra_files=extra)
    obs = map_tree(torch.from_numpy, sample(observation_space, NUM_ROWS))
    with torch.no_grad():
        flat = [leaf for _, leaf in leaves(obs)]
        distribution, _, value = module(*flat)
        want_distribution, want_value = policy(obs)
    np.testing.assert_allclose(distribution.numpy(), want_distribution.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value.numpy(), want_value.numpy(), rtol=1e-4, atol=1e-5)
    strings = {key: text.decode() if isinstance(text, bytes) else text for key, text in extra.items()}
    assert PolicyMetadata.from_strings(strings) == metadata_of(policy, masked=False)


def test_exported_value_is_in_units_of_reward(tmp_path):
    policy = make_policy(OBSERVATIONS["vector"], ACTIONS["discrete"])
    policy.return_normalizer.update(torch.tensor([[100.0], [300.0]]))
    path = export_policy(policy, metadata_of(policy, masked=False), tmp_path / "m.onnx", ExportFormat.ONNX)
    obs = sample(OBSERVATIONS["vector"], 8)
    value = ExportedActor(path).run([obs])[2]
    raw = policy.critic(torch.from_numpy(obs)).detach().numpy()[:, 0]
    np.testing.assert_allclose(value, raw * 100.0 + 200.0, rtol=1e-4)


def test_metadata_survives(tmp_path):
    policy = make_policy(OBSERVATIONS["nested"], ACTIONS["multi_discrete"])
    metadata = metadata_of(policy, masked=True)
    path = export_policy(policy, metadata, tmp_path / "m.onnx", ExportFormat.ONNX)
    assert ExportedActor(path).metadata == metadata


def test_a_wrong_export_is_not_written(tmp_path, monkeypatch):
    policy = make_policy(OBSERVATIONS["vector"], ACTIONS["discrete"])
    other = make_policy(OBSERVATIONS["vector"], ACTIONS["discrete"], normalize=True)
    right = export._onnx_bytes
    monkeypatch.setattr(export, "_onnx_bytes", lambda graph, *rest: right(export.ExportGraph(other, False), *rest))
    with pytest.raises(ExportError, match="differs"):
        export_policy(policy, metadata_of(policy, masked=False), tmp_path / "m.onnx", ExportFormat.ONNX)
    assert not list(tmp_path.iterdir())


def test_garbage_is_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(DecodeError, match=r"m\.onnx"):
        ExportedActor(tmp_path / "m.onnx")


def test_acting_from_a_file_does_not_load_torch(tmp_path):
    policy = make_policy(OBSERVATIONS["vector"], ACTIONS["discrete"])
    path = export_policy(policy, metadata_of(policy, masked=False), tmp_path / "m.onnx", ExportFormat.ONNX)
    code = (
        "import sys, json, pathlib, numpy as np; from relayrl.models.exports.exported import ExportedActor;"
        f"actor = ExportedActor(pathlib.Path({str(path)!r}));"
        "actions = actor.act_greedily(np.zeros((2, 5), np.float32));"
        "print(json.dumps([actions.tolist(), 'torch' in sys.modules]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    actions, torch_loaded = json.loads(out)
    assert len(actions) == 2
    assert not torch_loaded


def test_parameter_hash_tells_policies_apart():
    first, same = (make_policy(OBSERVATIONS["vector"], ACTIONS["box"]) for _ in range(2))
    assert parameter_hash(first) == parameter_hash(same)
    with torch.no_grad():
        same.log_std[0] += 1e-6
    assert parameter_hash(first) != parameter_hash(same)


def test_running_normalizer_matches_the_moments_of_all_data():
    data = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * 5 + 2
    normalizer = RunningNormalizer(3)
    for part in data.split(77):
        normalizer.update(part)
    np.testing.assert_allclose(normalizer.mean, data.double().mean(0), rtol=1e-9)
    np.testing.assert_allclose(normalizer.variance, data.double().var(0, unbiased=False), rtol=1e-9)
    normalized = normalizer(data)
    assert float(normalized.std()) == pytest.approx(1.0, abs=0.01)


def test_categorical_leaves_are_not_normalized():
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))
    policy = make_policy(space, ACTIONS["discrete"], normalize=True)
    assert policy.normalizer is not None
    assert policy.normalizer.scale[:3].tolist() == [1, 1, 1]
    assert policy.normalizer.shift[:3].tolist() == [0, 0, 0]
    assert policy.normalizer.scale[3:].tolist() != [1, 1]


@pytest.mark.parametrize("observation", ["vector", "image"])
def test_first_weights_are_as_the_settings_say(observation):
    layers = {}
    for initialization in ("orthogonal", "uniform"):
        network = NetworkSettings(hidden_sizes=(16, 16), initialization=initialization)
        policy = ActorCritic(OBSERVATIONS[observation], spaces.Discrete(4), network, torch.Generator().manual_seed(0))
        layers[initialization] = [m for m in policy.actor.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    assert all((layer.bias == 0).all() for layer in layers["orthogonal"])
    assert layers["orthogonal"][-1].weight.abs().max() < 0.05
    for layer in layers["uniform"]:
        bound = layer.weight[0].numel() ** -0.5
        for parameter in (layer.weight, layer.bias):
            assert 0.3 * bound < parameter.detach().std() < 0.8 * bound
            assert parameter.abs().max() <= bound
