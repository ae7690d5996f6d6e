"""The accelerator takes the steps that the reference takes."""

import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces

from relayrl.accelerator.on_policy_kernels import FASTEST, KernelUpdate
from relayrl.algorithms.losses import ClippedSurrogate, LogLikelihood, Objective
from relayrl.algorithms.on_policy import REFERENCE, Backend
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.torch_update import Batch, PassPlan, TorchUpdate
from relayrl.compiled import loader
from relayrl.errors import ConfigError, TrainingDivergedError
from relayrl.models.network_settings import Activation, NetworkSettings
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.models.networks.shared_rows import SharedPart, SharedRows
from relayrl.models.policy import ActorCritic

ACTIONS = {
    "discrete": spaces.Discrete(4, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[0, 5]),
    "box": spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
}
KERNELS = loader.kernels()


def test_where_there_is_a_compiler_the_kernels_were_built() -> None:
    """Tests of the kernels are skipped without them; on a developer's machine that must not go unnoticed."""
    assert KERNELS is not None or not (shutil.which("gcc") or shutil.which("cc"))


def make_policy(space, *, hidden=(8, 8), activation=Activation.TANH, num_features=3, central_width=None) -> ActorCritic:
    generator = torch.Generator().manual_seed(0)
    network = NetworkSettings(hidden_sizes=hidden, activation=activation)
    central = None if central_width is None else ObservationEncoder(spaces.Box(-1, 1, (central_width,)))
    policy = ActorCritic(spaces.Box(-1, 1, (num_features,)), space, network, generator, central)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return policy


def make_shared(rng, rows: int, width: int, agents: int) -> SharedRows:
    """Rows of which so many share their environment, with every row's environment drawn anew, and tell which agent they are
    of."""
    num_envs = -(-rows // agents)
    envs = rng.normal(size=(num_envs, width - agents)).astype(np.float32)
    env, agent = rng.integers(num_envs, size=rows), rng.integers(agents, size=rows)
    return SharedRows((SharedPart(envs, env), SharedPart(np.eye(agents, dtype=np.float32), agent)))


def make_batch(policy: ActorCritic, rows: int, *, masked=False, central_width=None, agents=1) -> Batch:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(rows, policy.encoder.num_features)).astype(np.float32)
    mask = None
    if masked:
        mask = rng.random((rows, policy.head.mask_width)) < 0.7
        mask[:, [0, -1]] = True
    with torch.no_grad():
        parameters = policy.distribution(torch.from_numpy(features), None if mask is None else torch.from_numpy(mask))
    action = policy.head.sample(parameters.numpy(), rng)
    logp = policy.head.log_prob_numpy(parameters.numpy(), action)
    noise = [rng.normal(size=rows).astype(np.float32) for _ in range(4)]
    central = None if central_width is None else make_shared(rng, rows, central_width, agents)
    logp = (logp + 0.3 * noise[0]).astype(np.float32)
    return Batch(features, action, mask, logp, noise[1], noise[2], noise[3], central)


def make_update(backend: Backend, policy: ActorCritic, objective: Objective) -> TorchUpdate:
    optimizers = FlatAdam(policy.actor_parameters(), 1e-3, 0.5), FlatAdam(policy.critic_parameters(), 2e-3, None)
    return backend.update(policy, objective, *optimizers)


def run_passes(
    backend: Backend, policy: ActorCritic, objective: Objective, batch: Batch, *, passes=(2, 3), minibatches=3
):
    """Metrics, parameters and moments after a plan's steps taken by `backend` from the same beginning."""
    update = make_update(backend, policy, objective)
    assert isinstance(update, KernelUpdate) == (backend is FASTEST)
    plan = PassPlan(len(batch), *passes, -(-len(batch) // minibatches), np.random.default_rng(5))
    metrics = update.begin(batch, plan)()
    tensors = {f"parameter {name}": p.detach().clone() for name, p in policy.named_parameters()}
    for name, adam in (("pi", update._pi_optimizer), ("vf", update._vf_optimizer)):
        tensors |= {f"{name} {key}": torch.as_tensor(value).clone() for key, value in adam.state_dict().items()}
    return metrics, tensors


def assert_same(make, objective: Objective, make_rows, **plan) -> None:
    compiled, compiled_tensors = run_passes(FASTEST, policy := make(), objective, make_rows(policy), **plan)
    metrics, tensors = run_passes(REFERENCE, policy := make(), objective, make_rows(policy), **plan)
    assert compiled.keys() == metrics.keys()
    for name, number in metrics.items():
        assert compiled[name] == pytest.approx(number, rel=1e-3, abs=2e-5), name
    for name, tensor in tensors.items():
        torch.testing.assert_close(compiled_tensors[name], tensor, rtol=1e-3, atol=2e-5, msg=name)


@pytest.fixture(params=KERNELS.instruction_sets() if KERNELS else ())
def instruction_set(request, monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, request.param)


def test_the_development_installation_has_the_kernels():
    assert KERNELS is not None, "build them: python setup.py build_ext --inplace"


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("space", ACTIONS)
def test_steps_are_those_of_the_reference(space, activation):
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.05, value_clip=0.2)
    assert_same(
        lambda: make_policy(ACTIONS[space], activation=activation),
        objective,
        lambda policy: make_batch(policy, 301, masked=space != "box"),
    )


@pytest.mark.parametrize("hidden", [(), (5,), (64, 64), (33, 17, 40), (130,)])
@pytest.mark.parametrize("rows", [1, 7, 96, 97, 500])
def test_any_depth_width_and_number_of_rows(hidden, rows):
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.01)
    make = lambda: make_policy(ACTIONS["discrete"], hidden=hidden, num_features=21)  # noqa: E731
    assert_same(make, objective, lambda policy: make_batch(policy, rows), minibatches=1 if rows == 1 else 2)


@pytest.mark.parametrize("space", ACTIONS)
def test_the_plain_log_likelihood(space):
    objective = Objective(LogLikelihood(), entropy_coef=0.1)
    assert_same(
        lambda: make_policy(ACTIONS[space]),
        objective,
        lambda policy: make_batch(policy, 200),
        passes=(1, 4),
        minibatches=1,
    )


def test_a_central_critic_sees_its_own_inputs():
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.2)
    assert_same(
        lambda: make_policy(ACTIONS["box"], central_width=19),
        objective,
        lambda policy: make_batch(policy, 150, central_width=19),
    )


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("hidden", [(), (5,), (64, 64), (1100, 8)])
def test_a_first_layer_that_multiplies_what_rows_share_once_is_the_same_layer(hidden):
    """Inputs of more than one piece of columns and of lines; more units than inputs, and fewer."""
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.2)
    central = make_batch(make_policy(ACTIONS["box"]), 1000, central_width=1057, agents=6).central
    assert central.pays_factored(1000 // 2)
    assert_same(
        lambda: make_policy(ACTIONS["box"], hidden=hidden, central_width=1057),
        objective,
        lambda policy: make_batch(policy, 1000, central_width=1057, agents=6),
        passes=(1, 2),
        minibatches=2,
    )


@pytest.mark.parametrize("factored", [False, True])
def test_values_of_rows_that_share_parts(factored, monkeypatch):
    policy = make_policy(ACTIONS["box"], hidden=(40, 16), central_width=700)
    rows = make_batch(policy, 2500, central_width=700, agents=5).central
    monkeypatch.setattr("relayrl.models.networks.shared_rows.MIN_SAVED_NUMBERS", 64 if factored else 1000)
    assert rows.pays_factored(len(rows)) == factored
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.0)
    expected = make_update(REFERENCE, policy, objective).value(rows)
    found = make_update(FASTEST, policy, objective).value(rows)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-5)
    with torch.no_grad():
        np.testing.assert_array_equal(expected, policy.value(torch.from_numpy(rows.laid_out())).numpy())


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ((), "1 to 4 parts"),
        (((np.zeros((2, 5), np.float32), np.array([0, 1, 2])),), "lines hold 2"),
        (((np.zeros((2, 5), np.float32), None),), "bytes"),
        (((np.zeros((3, 4), np.float32), None),), "not what the network takes"),
        (((np.zeros(15, np.float32), None),), "must be a matrix"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(parts, error):
    layer = (np.zeros((1, 5), np.float32), np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=error):
        KERNELS.MLP((layer,), True).forward_parts(parts, False, np.empty((3, 1), np.float32), 1)


def test_the_policy_stops_at_the_kl_limit_and_the_value_goes_on():
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.0, target_kl=0.002)

    def rows(policy):
        batch = make_batch(policy, 300)
        batch.logp = make_update(REFERENCE, policy, objective).log_prob(batch.features, batch.mask, batch.action)
        return batch

    make = lambda: make_policy(ACTIONS["discrete"])  # noqa: E731
    metrics, _ = run_passes(FASTEST, policy := make(), objective, rows(policy), passes=(40, 40))
    assert metrics["value/gradient_steps"] == 120
    assert 1 < metrics["policy/gradient_steps"] < 120
    assert_same(make, objective, rows, passes=(40, 40))


def test_no_value_pass_leaves_the_critic_alone():
    objective = Objective(LogLikelihood(), entropy_coef=0.0)
    policy = make_policy(ACTIONS["discrete"])
    before = [p.detach().clone() for p in policy.critic_parameters()]
    metrics, _ = run_passes(FASTEST, policy, objective, make_batch(policy, 50), passes=(1, 0))
    assert metrics["value/gradient_steps"] == 0
    assert "value/loss" not in metrics
    assert all(torch.equal(old, new) for old, new in zip(before, policy.critic_parameters(), strict=True))


@pytest.mark.parametrize("space", ACTIONS)
@pytest.mark.parametrize(("rows", "minibatches"), [(400, 4), (4001, 2), (2049, 2)])
@pytest.mark.parametrize("central_width", [None, 90])
def test_any_number_of_threads_gives_the_same_bits(space, rows, minibatches, central_width, monkeypatch):
    """Also where minibatches are in blocks, of which the thread that is done first takes some of the other's."""
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.01)
    results = []
    for threads in (1, 2, 2, 3, 8):
        monkeypatch.setattr("relayrl.accelerator.on_policy_kernels.num_threads", lambda n=threads: n)
        policy = make_policy(ACTIONS[space], hidden=(32, 32), central_width=central_width)
        batch = make_batch(policy, rows, central_width=central_width)
        results.append(run_passes(FASTEST, policy, objective, batch, passes=(3, 5), minibatches=minibatches)[1])
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in other)


@pytest.mark.parametrize("space", ACTIONS)
def test_minibatches_in_blocks_take_the_same_steps(space):
    objective = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.2)
    assert_same(
        lambda: make_policy(ACTIONS[space], hidden=(16, 16)),
        objective,
        lambda policy: make_batch(policy, 4100),
        passes=(2, 3),
        minibatches=3,
    )


@pytest.mark.parametrize("broken", ["advantage", "target"])
def test_a_loss_that_is_not_finite_stops_before_the_step(broken):
    policy = make_policy(ACTIONS["discrete"])
    before = [p.detach().clone() for p in policy.parameters()]
    batch = make_batch(policy, 50)
    getattr(batch, broken)[0] = math.nan
    network = "policy" if broken == "advantage" else "value"
    with pytest.raises(TrainingDivergedError, match=f"the {network} loss became nan"):
        run_passes(FASTEST, policy, Objective(ClippedSurrogate(0.2), 0.0), batch, passes=(1, 1), minibatches=1)
    kept = policy.actor if network == "policy" else policy.critic
    assert all(bool(torch.isfinite(p).all()) for p in kept.parameters())
    assert sum(torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True)) > 0


def test_heads_without_kernels_are_left_to_the_reference():
    policy = make_policy(spaces.MultiBinary(3))
    assert type(make_update(FASTEST, policy, Objective(ClippedSurrogate(0.2), 0.0))) is TorchUpdate


def test_off_means_the_reference(monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, loader.OFF)
    assert loader.kernels() is None
    assert loader.describe() == "torch (RELAYRL_COMPILED=off)"
    policy = make_policy(ACTIONS["box"])
    assert type(make_update(FASTEST, policy, Objective(ClippedSurrogate(0.2), 0.0))) is TorchUpdate


def test_an_unknown_instruction_set_is_refused(monkeypatch):
    monkeypatch.setenv(loader.VARIABLE, "abacus")
    with pytest.raises(ConfigError, match=r"RELAYRL_COMPILED=abacus: this machine has .*portable; or write off"):
        loader.kernels()


@pytest.mark.slow
def test_a_run_without_the_kernels_learns_as_well(tmp_path):
    command = [sys.executable, "-m", "relayrl.cli.main", "train", "native:CartPole", "--run-dir", str(tmp_path / "run")]
    settings = ["--set", "trainer.max_steps=20000", "--set", "evaluation.episodes=0"]
    done = subprocess.run(
        command + settings, env={**os.environ, loader.VARIABLE: loader.OFF}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
