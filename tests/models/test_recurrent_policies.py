"""Policies with a memory: one step is what the fused sequence does, files remember as the live policy does."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.live_actor import live_actor
from relayrl.data.trees import leaf_dtype, leaves, map_tree, space_leaves, unflatten
from relayrl.errors import ConfigError
from relayrl.models.acting.actor import Actor
from relayrl.models.acting.lane_memory import LaneMemory
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.network_settings import MemoryKind, MemorySettings, NetworkSettings
from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.models.networks.memory_cell import MemoryCell
from relayrl.models.policy import Policy
from relayrl.models.recurrent_policy import RecurrentActorCritic, actor_critic

VECTOR = spaces.Box(-1, 1, (5,))
ACTIONS = {
    "discrete": spaces.Discrete(4, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
}
OBSERVATIONS = {
    "vector": VECTOR,
    "nested": spaces.Dict({"camera": spaces.Box(0, 255, (16, 16), np.uint8), "kind": spaces.Discrete(3)}),
}
NUM_LANES, NUM_STEPS = 20, 50  # 1,000 observations


def make_policy(observation_space, action_space, kind, *, normalize=False, central=None):
    generator = torch.Generator().manual_seed(0)
    memory = MemorySettings(kind=kind, size=6)
    network = NetworkSettings(hidden_sizes=(16, 12), memory=memory, normalize_observations=normalize)
    policy = actor_critic(observation_space, action_space, network, generator, central)
    assert isinstance(policy, RecurrentActorCritic)
    with torch.no_grad():
        for parameter in policy.parameters():  # away from the nearly uniform initial policy
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    if policy.normalizer is not None:
        policy.normalizer.update(policy.encoder(map_tree(torch.from_numpy, sample(observation_space, 100))) * 3 + 1)
    return policy


def sample(space, rows: int, seed: int = 0):
    flat = []
    for i, (_, leaf) in enumerate(space_leaves(space)):
        leaf.seed(seed + i)
        flat.append(np.stack([np.asarray(leaf.sample(), leaf_dtype(leaf)) for _ in range(rows)]))
    return unflatten(space, iter(flat))


def exported(policy, tmp_path, file_format=ExportFormat.ONNX, masked=False):
    spaces_of = (policy.observation_space, policy.action_space)
    metadata = PolicyMetadata("Env-v0", "ppo", "agent", 7, masked, *spaces_of)
    return export_policy(policy, metadata, tmp_path / f"m{file_format.suffix}", file_format)


@pytest.fixture(params=MemoryKind, ids=lambda kind: kind.value)
def kind(request) -> MemoryKind:
    return request.param


def test_a_step_of_the_cell_is_torchs_own(kind):
    cell = MemoryCell(3, MemorySettings(kind=kind, size=4), torch.Generator().manual_seed(0))
    x, memory = torch.randn(5, 3), torch.randn(5, cell.width)
    output, after = cell.step(x, memory)
    parts = tuple(part[None].contiguous() for part in memory.split(4, -1))
    want, state = cell.layer(x[None], parts if kind is MemoryKind.LSTM else parts[0])
    torch.testing.assert_close(output, want[0], rtol=1e-5, atol=1e-6)
    state = torch.cat(state, -1)[0] if kind is MemoryKind.LSTM else state[0]
    torch.testing.assert_close(after, state, rtol=1e-5, atol=1e-6)


def test_packed_sequences_are_steps_one_after_the_other(kind):
    cell = MemoryCell(3, MemorySettings(kind=kind, size=4), torch.Generator().manual_seed(0))
    lengths = [5, 3, 3, 1]
    sequences = [torch.randn(length, 3) for length in lengths]
    first = torch.randn(4, cell.width)
    packed = torch.cat([torch.stack([s[t] for s in sequences if len(s) > t]) for t in range(5)])
    got = cell.unroll(packed, torch.tensor([4, 3, 3, 1, 1]), first)
    want, memory = [], first
    for t in range(5):
        count = sum(length > t for length in lengths)
        output, memory = cell.step(torch.stack([s[t] for s in sequences if len(s) > t]), memory[:count])
        want.append(output)
    torch.testing.assert_close(got, torch.cat(want), rtol=1e-5, atol=1e-6)


def test_weights_come_from_the_generator_and_an_lstm_begins_by_remembering():
    memory = MemorySettings(size=4)
    first, same, other = (MemoryCell(3, memory, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.layer.weight_hh_l0, same.layer.weight_hh_l0)
    assert not torch.equal(first.layer.weight_hh_l0, other.layer.weight_hh_l0)
    gate = first.layer.weight_hh_l0[4:8]
    torch.testing.assert_close(gate @ gate.T, torch.eye(4), rtol=1e-5, atol=1e-5)
    assert first.layer.bias_ih_l0.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8


def test_the_critic_remembers_for_itself():
    policy = make_policy(VECTOR, ACTIONS["discrete"], MemoryKind.LSTM)
    assert policy.memory_width == 2 * 2 * 6
    memory = torch.randn(3, 24)
    features = torch.randn(3, 5)
    distribution, value, after = policy.step(features, None, memory)
    changed = memory.clone()
    changed[:, 12:] = 0.0
    same, other_value, other_after = policy.step(features, None, changed)
    assert torch.equal(distribution, same)
    assert torch.equal(after[:, :12], other_after[:, :12])
    assert not torch.allclose(value, other_value)


def test_a_central_critics_memory_is_not_the_actors_row():
    policy = make_policy(VECTOR, ACTIONS["discrete"], MemoryKind.GRU, central=SideBySide([plain_numbers(9)]))
    assert policy.memory_width == 6
    assert policy.step(torch.randn(3, 5), None, torch.zeros(3, 6))[1] is None


def test_images_are_convolved_before_the_memory():
    policy = make_policy(OBSERVATIONS["nested"], ACTIONS["discrete"], MemoryKind.GRU)
    assert policy.image_encoder.num_images == 1
    assert policy.actor.trunk[0].in_features == policy.image_encoder.num_outputs


def test_a_live_actor_sees_the_newest_weights(kind):
    policy = make_policy(VECTOR, ACTIONS["discrete"], kind)
    actor, obs, nothing = live_actor(policy), sample(VECTOR, 4), np.zeros((4, policy.memory_width), np.float32)
    before = actor.step(obs, None, nothing)
    with torch.no_grad():
        policy.actor.cell.layer.bias_hh_l0.add_(1.0)
    assert not np.allclose(before[0], actor.step(obs, None, nothing)[0])


def test_what_has_a_memory_does_not_act_without_it(tmp_path):
    policy = make_policy(VECTOR, ACTIONS["discrete"], MemoryKind.GRU)
    for actor in (live_actor(policy), ExportedActor(exported(policy, tmp_path))):
        with pytest.raises(ConfigError, match="step"):
            actor.distribution(sample(VECTOR, 2))
        with pytest.raises(ConfigError, match="step"):
            actor.act_greedily(sample(VECTOR, 2))


def test_other_policies_refuse_a_memory_and_say_who_takes_it():
    network = NetworkSettings(memory=MemorySettings())
    with pytest.raises(ConfigError, match="ppo, appo, impala, reinforce"):
        Policy(VECTOR, likelihood_head(ACTIONS["discrete"]), network, torch.Generator())


class Adding(Actor):
    """Remembers the sum of what it saw."""

    memory_width = 1
    head = likelihood_head(spaces.Discrete(2))

    def distribution(self, obs, mask=None):
        raise NotImplementedError

    def step(self, obs, mask, memory):
        return np.zeros((len(obs), 2), np.float32), memory + obs


def test_lanes_remember_what_they_acted_on_until_their_episode_ends():
    memory = LaneMemory(Adding(), 3)
    rng = np.random.default_rng(0)
    memory.decide(np.array([[1.0], [2.0], [3.0]], np.float32), None, rng, np.array([True, True, False]))
    assert memory.values.tolist() == [[1], [2], [0]]
    memory.forget(np.array([False, True, False]))
    memory.decide(np.array([[10.0], [20.0], [30.0]], np.float32), None, rng)
    assert memory.values.tolist() == [[11], [20], [30]]


def play(actor: Actor, obs, masks, greedy: bool) -> tuple[np.ndarray, np.ndarray]:
    """Actions and distributions of NUM_STEPS steps; every third step some episodes end."""
    memory, rng = LaneMemory(actor, NUM_LANES), np.random.default_rng(1)
    actions, distributions = [], []
    for t in range(NUM_STEPS):
        rows = slice(t * NUM_LANES, (t + 1) * NUM_LANES)
        seen, mask = map_tree(lambda leaf, rows=rows: leaf[rows], obs), None if masks is None else masks[rows]
        distributions.append(actor.step(seen, mask, memory.values)[0])
        actions.append(memory.decide(seen, mask, None if greedy else rng).action)
        memory.forget(np.arange(NUM_LANES) % 7 == t % 3)
    return np.concatenate(actions), np.concatenate(distributions)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_onnx_remembers_as_the_live_policy_does(observation, action, kind, normalize, masked, tmp_path):
    policy = make_policy(OBSERVATIONS[observation], ACTIONS[action], kind, normalize=normalize)
    masks = None
    if masked and policy.head.mask_width is not None:
        masks = np.random.default_rng(5).random((NUM_LANES * NUM_STEPS, policy.head.mask_width)) < 0.6
        masks[:, [0, -1]] = True
    actor = ExportedActor(exported(policy, tmp_path, masked=masks is not None))
    obs = sample(OBSERVATIONS[observation], NUM_LANES * NUM_STEPS, seed=11)
    for greedy in (False, True):
        got, want = (play(each, obs, masks, greedy) for each in (actor, live_actor(policy)))
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("action", ACTIONS)
def test_torchscript_remembers_as_the_live_policy_does(action, kind, tmp_path):
    policy = make_policy(OBSERVATIONS["nested"], ACTIONS[action], kind, normalize=True)
    path = exported(policy, tmp_path, ExportFormat.TORCHSCRIPT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(path)
    got = want = torch.zeros(NUM_LANES, policy.memory_width)
    for t in range(NUM_STEPS):
        obs = map_tree(torch.from_numpy, sample(OBSERVATIONS["nested"], NUM_LANES, seed=t))
        with torch.no_grad():
            distribution, _, value, got = module(*(leaf for _, leaf in leaves(obs)), got)
            want_distribution, want_value, want = policy.step(policy.features(obs), None, want)
        torch.testing.assert_close(distribution, want_distribution, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value, want_value, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_files_metadata_says_how_much_it_remembers(tmp_path):
    policy = make_policy(VECTOR, ACTIONS["discrete"], MemoryKind.LSTM)
    metadata = ExportedActor(exported(policy, tmp_path)).metadata
    assert metadata.memory_width == 24
    before_memories = {k: v for k, v in metadata.as_strings().items() if not k.endswith("memory_width")}
    assert PolicyMetadata.from_strings(before_memories).memory_width == 0
