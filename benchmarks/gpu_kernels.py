#!/usr/bin/env python3
"""Check every GPU kernel against float64 references and time it against plain torch, on one CUDA device.

    python benchmarks/gpu_kernels.py [--only rest,0,recurrent,convolutions] [--variants]

Errors are ‖own − reference‖ / ‖reference‖. Times are medians of CUDA graph replays; "torch" is the same in float32 torch (tf32
products beside tf32 kernels), also in a CUDA graph. The floor is the arithmetic at the measured rate of a large tf32 product.
`--variants` times other block sizes too. The table comes last. Without a CUDA device it prints one line and exits 0.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from relayrl.algorithms.losses import ClippedSurrogate, Objective, entropy_bonus
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.updates.device_update import DeviceBatch, DeviceUpdate
from relayrl.models.network_settings import NetworkSettings
from relayrl.models.policy import ActorCritic

LINES: list[str] = []
PPO = Objective(ClippedSurrogate(0.2), entropy_coef=0.01, value_clip=0.2)


@dataclass(frozen=True)
class Case:
    """A policy and how many rows a minibatch of it has."""

    name: str
    num_features: int
    space: spaces.Space[Any]
    hidden: tuple[int, ...]
    activation: str
    num_rows: int
    minibatch: int
    num_lanes: int


CASES = [
    Case("CartPole 2x64 tanh", 4, spaces.Discrete(2), (64, 64), "tanh", 524_288, 131_072, 16_384),
    Case("spread 2x64 tanh", 18, spaces.Discrete(5), (64, 64), "tanh", 1_572_864, 393_216, 12_288),
    Case(
        "3x128 relu, 6 normal", 17, spaces.Box(-1.0, 1.0, (6,), np.float32), (128,) * 3, "relu", 262_144, 65_536, 8_192
    ),
    Case(
        "3x512 tanh, 6 normal", 60, spaces.Box(-1.0, 1.0, (6,), np.float32), (512,) * 3, "tanh", 131_072, 32_768, 8_192
    ),
]


def graph_us(function: Callable[[], object], repeats: int = 15) -> float:
    """Median microseconds of one call, by replays of a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(4):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 250.0)
    return statistics.median(times)


def error(own: Tensor, reference: Tensor) -> float:
    """Relative, of the whole tensor; infinite where a number is missing."""
    own, reference = own.double(), reference.double()
    if not torch.isfinite(own).all():
        return float("inf")
    return float((own - reference).norm() / reference.norm().clamp(min=1e-30))


def tf32_rate() -> float:
    """Measured FLOP/s of a large tf32 product."""
    torch.backends.cuda.matmul.allow_tf32 = True
    a, b = torch.randn(2, 8192, 8192, device="cuda")
    out = torch.empty_like(a)
    rate = 2 * 8192**3 / (graph_us(lambda: torch.mm(a, b, out=out), 5) * 1e-6)
    torch.backends.cuda.matmul.allow_tf32 = False
    return rate


def row(name: str, precision: str, err: float, own: float, reference: float | None, floor: float | None) -> None:
    """One line of the table."""
    ratio = "" if reference is None else f"{reference:9.1f} {reference / own:6.2f}"
    LINES.append(f"{name:60} {precision:8} {err:9.1e} {own:9.1f} {ratio:16} {'' if floor is None else f'{floor:8.1f}'}")
    print(LINES[-1], flush=True)


def make(case: Case) -> tuple[ActorCritic, FlatAdam, FlatAdam, DeviceBatch]:
    """A policy on the device and rows that it acted on."""
    box = spaces.Box(-1.0, 1.0, (case.num_features,), np.float32)
    settings = NetworkSettings(hidden_sizes=case.hidden, activation=case.activation)
    policy = ActorCritic(box, case.space, settings, torch.Generator().manual_seed(0)).to("cuda")
    g = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():
        for p in policy.actor_parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=g, device="cuda"))
    optimizers = FlatAdam(policy.actor_parameters(), 1e-3, 0.5), FlatAdam(policy.critic_parameters(), 1e-3, 0.5)
    m = case.num_rows
    features = torch.randn(m, case.num_features, generator=g, device="cuda")
    if isinstance(case.space, spaces.Discrete):
        action = torch.randint(int(case.space.n), (m,), generator=g, device="cuda")
    else:
        action = 0.7 * torch.randn(m, case.space.shape[0], generator=g, device="cuda")
    with torch.no_grad():
        logp = policy.head.log_prob(policy.distribution(features), action)
    # Away from where the loss is clipped: there, rounding decides about whole rows.
    moves = torch.tensor([-0.6, -0.1, 0.1, 0.6], device="cuda")
    logp = logp + moves[torch.randint(4, (m,), generator=g, device="cuda")]
    advantage, target, old_value = torch.randn(3, m, generator=g, device="cuda")
    return policy, *optimizers, DeviceBatch(features, features, action, None, logp, advantage, target, old_value)


def _double(rows: DeviceBatch) -> DeviceBatch:
    own = {name: getattr(rows, name) for name in rows.__slots__}
    return replace(rows, **{n: t.double() for n, t in own.items() if t is not None and t.is_floating_point()})


def policy_gradient(policy: ActorCritic, rows: DeviceBatch, which: Tensor) -> tuple[Tensor, ...]:
    """By autograd over the reference losses."""
    distribution = policy.distribution(rows.features[which])
    log_ratio = policy.head.log_prob(distribution, rows.action[which]) - rows.logp[which]
    loss = PPO.policy_loss.loss(log_ratio, rows.advantage[which])
    total = loss + entropy_bonus(policy.head.entropy(distribution), PPO.entropy_coef)
    return torch.autograd.grad(total, policy.actor_parameters())


def value_gradient(policy: ActorCritic, rows: DeviceBatch, which: Tensor) -> tuple[Tensor, ...]:
    """By autograd over the reference losses."""
    value = policy.normalized_value(rows.critic_features[which])
    return torch.autograd.grad(
        PPO.value_loss(value, rows.old_value[which], rows.target[which]), policy.critic_parameters()
    )


def flat(tensors: tuple[Tensor, ...]) -> Tensor:
    """Side by side."""
    return torch.cat([t.reshape(-1) for t in tensors])


def flops(case: Case, num_outputs: int) -> float:
    """Of the gradient of one network over a minibatch: forward, weights' gradients, and back through all but the first."""
    sizes = (case.num_features, *case.hidden, num_outputs)
    pairs = list(itertools.pairwise(sizes))
    return 2.0 * case.minibatch * (2 * sum(a * b for a, b in pairs) + sum(a * b for a, b in pairs[1:]))


def plain_step(policy: ActorCritic, pi: FlatAdam, vf: FlatAdam, rows: DeviceBatch, which: Tensor) -> Callable[[], None]:
    """A minibatch's step of both networks by the torch reference."""
    update, keep = DeviceUpdate(policy, PPO, pi, vf), torch.ones(1, device="cuda")

    def step() -> None:
        update.gradients(rows, which, trains_pi=True, trains_vf=True)
        update.step_policy(keep)
        update.step_value(keep)

    return step


def gradients(case: Case, rate: float, precision: Any, variants: bool) -> None:
    """Both gradients of a minibatch, and a whole step of both networks."""
    from relayrl.accelerator.gpu.fused_update import fused_update
    from relayrl.accelerator.gpu.mlp_tiles import Precision

    policy, pi, vf, rows = make(case)
    which = torch.randperm(case.num_rows, device="cuda")[: case.minibatch]
    exact, exact_rows = copy.deepcopy(policy).double(), _double(rows)
    expected = flat(policy_gradient(exact, exact_rows, which)), flat(value_gradient(exact, exact_rows, which))
    del exact, exact_rows
    torch.backends.cuda.matmul.allow_tf32 = precision is Precision.TF32
    update = fused_update(policy, PPO, pi, vf, precision)
    assert update is not None
    pairs = ("policy", pi, policy_gradient, expected[0]), ("value", vf, value_gradient, expected[1])
    for kind, optimizer, plain, want in pairs:
        trains = {"trains_pi": kind == "policy", "trains_vf": kind == "value"}
        optimizer.gradient.fill_(float("nan"))
        update.gradients(rows, which, **trains)
        err, torch_err = error(optimizer.gradient, want), error(flat(plain(policy, rows, which)), want)
        own = graph_us(lambda trains=trains: update.gradients(rows, which, **trains))
        reference = graph_us(lambda plain=plain: plain(policy, rows, which), 5)
        outputs = policy.head.num_network_outputs if kind == "policy" else 1
        name = f"{case.name} {kind} gradient {case.minibatch} (torch {torch_err:.0e})"
        row(name, precision.value, err, own, reference, flops(case, outputs) / rate * 1e6)
    if variants:
        time_variants(case, update, rows, which, expected[0])
    sums, keep = (torch.zeros(6, device="cuda"), torch.zeros(3, device="cuda")), torch.ones(1, device="cuda")
    own = graph_us(lambda: update.take_step(rows, which, keep, sums))
    floor = (flops(case, policy.head.num_network_outputs) + flops(case, 1)) / rate * 1e6
    row(
        f"{case.name} step of both {case.minibatch}",
        precision.value,
        0.0,
        own,
        graph_us(plain_step(policy, pi, vf, rows, which), 5),
        floor,
    )
    few = which[:128].contiguous()
    own = graph_us(lambda: update.take_step(rows, few, keep, sums))
    row(
        f"{case.name} step of both 128",
        precision.value,
        0.0,
        own,
        graph_us(plain_step(policy, pi, vf, rows, few), 5),
        None,
    )
    torch.backends.cuda.matmul.allow_tf32 = False


VARIANTS = [
    (64, 4, 264, 1), (64, 4, 264, 2), (64, 4, 264, 3), (64, 4, 132, 1), (64, 4, 132, 3), (128, 8, 132, 1), (128, 8, 132, 3),
    (64, 4, 264, 4), (32, 4, 264, 1),
]  # fmt: skip


def time_variants(case: Case, update: Any, rows: DeviceBatch, which: Tensor, want: Tensor) -> None:
    """Other blocks, warps, programs and stages of the persistent kernel."""
    from relayrl.accelerator.gpu.gradient_plans import PersistentPlan

    old, optimizer = update._plan(which), update.pi_adam.flat
    if not isinstance(old, PersistentPlan):
        return
    for blocks in VARIANTS:
        make_plan = (update._shapes, 0, which.shape[0], update.precision, which.device)
        try:
            update._plans[which.shape[0]] = PersistentPlan(*make_plan, blocks=blocks)
            optimizer.gradient.fill_(float("nan"))
            update.gradients(rows, which, trains_pi=True, trains_vf=False)
            err = error(optimizer.gradient, want)
            one = graph_us(lambda: update.gradients(rows, which, trains_pi=True, trains_vf=False), 7)
            sums, keep = (torch.zeros(6, device="cuda"), torch.zeros(3, device="cuda")), torch.ones(1, device="cuda")
            both = graph_us(lambda sums=sums, keep=keep: update.take_step(rows, which, keep, sums), 7)
            print(
                f"  variant {blocks} {update.precision.value}: {err:.1e} policy {one:.1f} both {both:.1f} us",
                flush=True,
            )
        except Exception as failure:  # noqa: BLE001 - a variant may need more memory than a block has
            print(f"  variant {blocks} {update.precision.value}: {str(failure)[:90]!r}", flush=True)
    update._plans[which.shape[0]] = old


def acting(case: Case, precision: Any) -> None:
    """One step of acting for all lanes, and their values."""
    from relayrl.accelerator.gpu.fused_update import fused_update
    from relayrl.accelerator.gpu.mlp_tiles import Precision

    policy, pi, vf, rows = make(case)
    features = rows.features[: case.num_lanes].contiguous()
    is_choice = isinstance(case.space, spaces.Discrete)
    noise = torch.rand(case.num_lanes, 1, device="cuda") if is_choice else torch.randn(case.num_lanes, 6, device="cuda")
    exact = copy.deepcopy(policy).double()
    with torch.no_grad():
        parameters, value = exact.distribution(features.double()), exact.value(features.double())
    torch.backends.cuda.matmul.allow_tf32 = precision is Precision.TF32
    update, plain = fused_update(policy, PPO, pi, vf, precision), DeviceUpdate(policy, PPO, pi, vf)
    assert update is not None
    action, logp = update.act(features, noise)
    own_value = update.values(features)
    err = max(
        error(logp, exact.head.log_prob(parameters, action if is_choice else action.double())), error(own_value, value)
    )
    for kind, ours, theirs in (
        ("act", lambda: update.act_into(features, noise, (action, logp)), lambda: plain.act(features, noise)),
        ("values", lambda: update.values(features), lambda: plain.values(features)),
    ):
        row(
            f"{case.name} {kind} {case.num_lanes} lanes",
            precision.value,
            err,
            graph_us(ours),
            graph_us(theirs, 5),
            None,
        )
    torch.backends.cuda.matmul.allow_tf32 = False


def adam(case: Case) -> None:
    """Clip and step."""
    from relayrl.accelerator.gpu.clipped_adam import FusedAdam

    policy, pi, _, _ = make(case)
    pi.gradient.normal_()
    twin = FlatAdam([torch.nn.Parameter(p.detach().clone()) for p in policy.actor_parameters()], pi.lr, pi.max_norm)
    twin.gradient.copy_(pi.gradient)
    own = FusedAdam(pi)
    keep, before = torch.ones(1, device="cuda"), pi.vector.clone()
    for _ in range(3):
        own.step(keep)
        twin.step()
        twin.gradient.copy_(pi.gradient)
    err = error(pi.vector - before, twin.vector - before)

    @torch.no_grad()
    def plain() -> None:
        g = twin.gradient * (0.5 / torch.linalg.vector_norm(twin.gradient).clamp(min=0.5))
        twin.first_moment.lerp_(g, 0.1)
        twin.second_moment.mul_(0.999).addcmul_(g, g, value=0.001)
        twin.vector.addcdiv_(twin.first_moment, twin.second_moment.sqrt().add_(1e-5), value=-1e-3)

    row(
        f"{case.name} Adam {pi.vector.numel()} parameters",
        "",
        err,
        graph_us(lambda: own.step(keep)),
        graph_us(plain, 5),
        None,
    )


def gae(num_steps: int, num_lanes: int) -> None:
    """Advantages and their normalisation."""
    from relayrl.accelerator.gpu import advantage_kernels
    from relayrl.algorithms import returns

    reward, value = torch.randn(2, num_steps, num_lanes, device="cuda")
    last, final = torch.randn(2, num_lanes, device="cuda")
    terminated, truncated = torch.rand(2, num_steps, num_lanes, device="cuda") < 0.02
    truncated &= truncated.cumsum(0) <= 1
    next_value = torch.where(truncated, final, torch.cat([value[1:], last[None]]))
    columns, sums = (reward, (value, last, final[None]), (terminated, truncated)), torch.zeros(3, device="cuda")
    advantage = advantage_kernels.gae(*columns, gamma=0.99, lam=0.95)
    normal = advantage_kernels.normalize(advantage, value, sums)
    host = [c.cpu().numpy() for c in (reward, value, next_value, terminated, truncated)]
    want = returns.gae(
        *(c.astype(np.float64) if c.dtype == np.float32 else c for c in host),
        np.ones_like(host[3]),
        gamma=0.99,
        lam=0.95,
    )
    err = max(
        error(advantage.cpu(), torch.from_numpy(want)),
        error(normal.cpu(), torch.from_numpy(returns.normalized(want.astype(np.float64)))),
    )

    def plain() -> Tensor:
        ahead, found = torch.zeros_like(value[0]), []
        delta = reward + 0.99 * next_value * ~terminated - value
        goes_on = 0.99 * 0.95 * ~(terminated | truncated)
        for t in range(num_steps - 1, -1, -1):
            ahead = delta[t] + goes_on[t] * ahead
            found.append(ahead)
        joined = torch.stack(found)
        return (joined - joined.mean()) / (joined.std(correction=0) + 1e-8)

    def kernels() -> None:
        advantage_kernels.normalize(advantage_kernels.gae(*columns, gamma=0.99, lam=0.95), value, sums)

    row(
        f"GAE and normalise {num_steps} x {num_lanes}",
        "",
        err,
        graph_us(kernels),
        graph_us(plain, 5),
        reward.numel() * 26 / 4.3e12 * 1e6,
    )


def worlds(name: str, num_envs: int) -> None:
    """A dense step of a native environment; the error is that of the observations after 8 steps."""
    from relayrl.accelerator.gpu.environments.fused_steps import fused_step
    from relayrl.envs.native.native_registry import make as make_env

    made = [make_env(name, device="cuda") for _ in range(2)]
    for env in made:
        env.init_num_envs(num_envs)
        env.reset(seed=3)
    (group,) = made[0].groups
    shape, step = (num_envs, made[0].groups[group].num_agents), fused_step(made[0])
    assert step is not None
    is_box = isinstance(made[0].groups[group].action_space, spaces.Box)
    for _ in range(8):
        action = 2.0 * torch.randn(*shape, 1, device="cuda") if is_box else torch.randint(0, 2, shape, device="cuda")
        found, expected = step({group: action}), made[1].step_dense({group: action})
    err = error(found.groups[group].obs, expected.groups[group].obs)
    own, plain = graph_us(lambda: step({group: action})), graph_us(lambda: made[1].step_dense({group: action}), 5)
    row(f"step of {num_envs} {name}", "", err, own, plain, None)


def rollouts(name: str, num_envs: int, num_steps: int, hidden: tuple[int, ...], precision: Any) -> None:
    """A whole rollout; torch acts and steps densely, without its bookkeeping of episodes."""
    from relayrl.accelerator.gpu.environments.fused_rollouts import fused_rollout
    from relayrl.accelerator.gpu.fused_update import fused_update
    from relayrl.engines.device.resident_rollout import ResidentRollout
    from relayrl.envs.native.native_registry import make as make_env

    made = []
    for _ in range(2):
        env = make_env(name, device="cuda")
        env.init_num_envs(num_envs)
        env.reset(seed=3)
        (group,) = env.groups.values()
        rollout = ResidentRollout(group, env.env_ids, num_steps, env.blueprint.max_episode_steps, torch.device("cuda"))
        made.append((env, rollout))
    (env, rollout), (twin, columns) = made
    settings = NetworkSettings(hidden_sizes=hidden)
    policy = ActorCritic(group.observation_space, group.action_space, settings, torch.Generator().manual_seed(0)).to(
        "cuda"
    )
    optimizers = FlatAdam(policy.actor_parameters(), 1e-3, 0.5), FlatAdam(policy.critic_parameters(), 1e-3, 0.5)
    update = fused_update(policy, PPO, *optimizers, precision)
    fill, reference = fused_rollout(env, update), DeviceUpdate(policy, PPO, *optimizers)
    assert fill is not None
    kind, width = policy.head.noise
    draw = torch.rand if kind.name == "UNIFORM" else torch.randn
    noise = draw(num_steps, rollout.num_lanes, width, device="cuda")

    def plain() -> None:
        for t in range(num_steps):
            obs = twin.build_observation().groups[group.name].obs.flatten(0, 1)
            columns.obs[t].copy_(obs)
            reference.act_into(columns.obs[t], noise[t], (columns.action[t], columns.logp[t]))
            taken = columns.action[t].reshape(num_envs, group.num_agents, *columns.action.shape[2:])
            step = twin.step_dense({group.name: taken})
            columns.finish_row(t, step.groups[group.name], step.final[group.name].flatten(0, 1))

    fill(rollout, noise)
    plain()
    err = max(error(rollout.logp[:4], columns.logp[:4]), error(rollout.obs[:4], columns.obs[:4]))
    own = graph_us(lambda: fill(rollout, noise), 7)
    row(f"rollout of {name} {num_envs} x {num_steps}", precision.value, err, own, graph_us(plain, 3), None)


def recurrent(kind: str, size: int, num_steps: int, num_lanes: int) -> None:
    """A cell over lanes with starts, forward and backward; torch goes step by step."""
    from relayrl.accelerator.gpu.mlp_tiles import Precision
    from relayrl.accelerator.gpu.recurrent.fused_cells import fused_unroll
    from relayrl.models.network_settings import MemorySettings
    from relayrl.models.networks.memory_cell import MemoryCell, MemoryStarts

    cell = MemoryCell(64, MemorySettings(kind=kind, size=size), torch.Generator().manual_seed(0)).to("cuda")
    inputs = torch.randn(num_steps, num_lanes, 64, device="cuda", requires_grad=True)
    given = torch.randn(2, num_lanes, cell.width, device="cuda")
    given[0] = 0.0
    slot = torch.where(torch.rand(num_steps, num_lanes, device="cuda") < 0.04, 0, -1)
    slot[0] = 1
    starts = MemoryStarts(slot, given)
    upper = torch.randn(num_steps, num_lanes, size, device="cuda")

    def differentiate(outputs: Tensor, of: list[Tensor]) -> Tensor:
        return flat(torch.autograd.grad((outputs * upper.to(outputs.dtype)).sum(), of))

    wanted = list(cell.parameters())
    twin = copy.deepcopy(cell).double()
    exact = twin.unroll_lanes(inputs.detach().double(), MemoryStarts(slot, given.double())).outputs
    expected = differentiate(exact, list(twin.parameters()))
    exact = exact.detach()
    plain = graph_us(lambda: differentiate(cell.unroll_lanes(inputs, starts).outputs, [inputs, *wanted]), 3)
    for precision in (Precision.TF32, Precision.NEAR_FLOAT32, Precision.BF16X3):
        torch.backends.cuda.matmul.allow_tf32 = precision is Precision.TF32
        outputs = fused_unroll(cell, inputs, starts, precision).outputs
        err = max(error(outputs.detach(), exact), error(differentiate(outputs, wanted), expected))
        del outputs
        both = graph_us(
            lambda p=precision: differentiate(fused_unroll(cell, inputs, starts, p).outputs, [inputs, *wanted]), 5
        )
        with torch.no_grad():
            one = graph_us(lambda p=precision: fused_unroll(cell, inputs, starts, p).outputs, 5)
        row(
            f"{kind} {size}, {num_steps} x {num_lanes}, both ways ({one:.0f} forward)",
            precision.value,
            err,
            both,
            plain,
            None,
        )
    torch.backends.cuda.matmul.allow_tf32 = False


def convolutions(num_images: int) -> None:
    """Nature's layers on 84×84×4 bytes, forward and with the gradients of all parameters; torch's round to tf32 as well."""
    from relayrl.accelerator.gpu.convolutions.fused_images import fused_encoder
    from relayrl.models.networks.image_encoder import ImageEncoder
    from relayrl.models.networks.observation_encoder import ObservationEncoder

    encodings = ObservationEncoder(spaces.Box(0, 255, (84, 84, 4), np.uint8)).encodings
    encoder = ImageEncoder(encodings, NetworkSettings(encoder="nature_cnn"), torch.Generator().manual_seed(0)).to(
        "cuda"
    )
    own = fused_encoder(encoder)
    assert own is not None
    images = torch.randint(0, 256, (num_images, 84, 84, 4), dtype=torch.uint8, device="cuda")
    parameters = list(encoder.parameters())
    given = torch.randn(num_images, encoder.num_outputs, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True

    def gradients(module: Any, of: list[Any], upper: Tensor) -> Tensor:
        return flat(torch.autograd.grad(module.of_leaves([images]), of, upper))

    few = images[:512]
    exact = copy.deepcopy(encoder).double().convolutions["0"]
    pixels = few.permute(0, 3, 1, 2).double() / 255
    expected = flat(torch.autograd.grad(exact(pixels), list(exact.parameters()), given[:512].double()))
    found = flat(torch.autograd.grad(own.of_leaves([few]), parameters, given[:512]))
    plain = flat(torch.autograd.grad(encoder.of_leaves([few]), parameters, given[:512]))
    name = f"Nature's convolutions, {num_images} images"
    for kind, ours, theirs in (
        ("forward", lambda: own.of_leaves([images]), lambda: encoder.of_leaves([images])),
        ("both ways", lambda: gradients(own, parameters, given), lambda: gradients(encoder, parameters, given)),
    ):
        with torch.set_grad_enabled(kind == "both ways"):
            times = graph_us(ours, 5), graph_us(theirs, 3)
        row(f"{name}, {kind} (torch {error(plain, expected):.0e})", "tf32", error(found, expected), *times, None)
    torch.backends.cuda.matmul.allow_tf32 = False


def recurrent_step(num_steps: int, num_lanes: int, minibatch: int) -> None:
    """Gradients of a minibatch of lanes, of actor and critic with a GRU of 128 behind two layers of 128, in half precision."""
    from relayrl.accelerator.gpu.mlp_tiles import Precision
    from relayrl.accelerator.gpu.recurrent.fused_recurrent import fused_recurrent_update
    from relayrl.algorithms.updates.device_sequences import LaneBatch, RecurrentDeviceUpdate, memory_starts
    from relayrl.models.network_settings import MemorySettings
    from relayrl.models.networks.memory_cell import MemoryStarts
    from relayrl.models.recurrent_policy import RecurrentActorCritic

    memory = MemorySettings(kind="gru", size=128, sequence_length=num_steps)
    network = NetworkSettings(hidden_sizes=(128, 128), activation="relu", memory=memory)
    box = spaces.Box(-1.0, 1.0, (18,), np.float32)
    policy = RecurrentActorCritic(box, spaces.Discrete(5), network, torch.Generator().manual_seed(0)).to("cuda")
    exact = copy.deepcopy(policy).double()
    objective, rows = replace(PPO, value_clip=None), (num_steps, num_lanes)
    made = []
    for each in (policy, exact):
        optimizers = [FlatAdam(own, 1e-3, 0.5) for own in (each.actor_parameters(), each.critic_parameters())]
        made.append((each, objective, *optimizers))
    features, ended = torch.randn(*rows, 18, device="cuda"), torch.rand(rows, device="cuda") < 0.04
    starts = [memory_starts(ended, torch.randn(1, num_lanes, 128, device="cuda"), num_steps) for _ in range(2)]
    action, logp = torch.randint(0, 5, rows, device="cuda"), torch.full(rows, -1.6094, device="cuda")
    batch = LaneBatch(features, features, action, None, logp, *torch.randn(3, *rows, device="cuda"), *starts)
    where = torch.randperm(num_lanes, device="cuda")[:minibatch]
    torch.backends.cuda.matmul.allow_tf32 = True
    own, plain = fused_recurrent_update(*made[0], Precision.TF32), RecurrentDeviceUpdate(*made[0])
    assert own is not None
    part = batch.rows(where)
    doubled = [c.double() if c is not None and c.is_floating_point() else c for c in part.columns()]
    given = [MemoryStarts(each.slot, each.given.double()) for each in (part.actor_starts, part.critic_starts)]
    reference = RecurrentDeviceUpdate(*made[1])
    reference.gradients(LaneBatch(*doubled, *given), None, trains_pi=True, trains_vf=True)
    own.gradients(batch, where, trains_pi=True, trains_vf=True)
    pairs = (own.pi_adam, reference.pi_adam), (own.vf_adam, reference.vf_adam)
    err = max(error(ours.flat.gradient, theirs.flat.gradient) for ours, theirs in pairs)
    ours_us = graph_us(lambda: own.gradients(batch, where, trains_pi=True, trains_vf=True), 5)
    theirs_us = graph_us(lambda: plain.gradients(batch, where, trains_pi=True, trains_vf=True), 3)
    row(f"gradients of both, 2x128, GRU 128, {num_steps} x {minibatch}", "half", err, ours_us, theirs_us, None)
    torch.backends.cuda.matmul.allow_tf32 = False


def jobs_of(part: str, variants: bool) -> list[Callable[[], None]]:
    """What one process measures; the precision that is least used comes last."""
    if part == "rest":
        sizes = ("CartPole", 16_384), ("Pendulum", 4_096), ("simple_spread", 4_096)
        made: list[Callable[[], None]] = [lambda: gae(32, 16_384), lambda: gae(128, 12_288)]
        return [*made, *(lambda name=name, n=n: worlds(name, n) for name, n in sizes)]
    if part == "rollouts":
        from relayrl.accelerator.gpu.mlp_tiles import Precision

        runs = ("CartPole", 16_384, 32), ("CartPole", 4, 128), ("simple_spread", 4_096, 128), ("Pendulum", 4_096, 32)
        chosen = Precision.TF32, Precision.NEAR_FLOAT32, Precision.BF16X3
        return [lambda run=run, p=p: rollouts(*run, (64, 64), p) for p in chosen for run in runs]
    if part == "convolutions":
        return [lambda: convolutions(8_192)]
    if part == "recurrent":
        cells = [lambda: recurrent("gru", 128, 128, 4_096), lambda: recurrent("lstm", 128, 128, 1_024)]
        return [lambda: recurrent_step(128, 12_288, 3_072), *cells]
    from relayrl.accelerator.gpu.mlp_tiles import Precision

    case, rate = CASES[int(part)], tf32_rate()
    made = [lambda: adam(case)]
    for precision in (Precision.TF32, Precision.NEAR_FLOAT32, Precision.BF16X3):
        made.append(lambda precision=precision: gradients(case, rate, precision, variants and part == "0"))
        made.append(lambda precision=precision: acting(case, precision))
    return made


def measure(part: str, variants: bool) -> int:
    """Measure one part; prints the lines of the table behind a mark."""
    failed = 0
    for job in jobs_of(part, variants):
        try:
            job()
        except Exception as failure:  # noqa: BLE001 - the other kernels are measured all the same
            failed += 1
            LINES.append(f"FAILED {part}: {type(failure).__name__} {str(failure)[:200]!r}")
            print(LINES[-1], flush=True)
    print(MARK + "\n".join(LINES), flush=True)
    return failed


MARK = "=== table\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["rest", "rollouts", *map(str, range(len(CASES))), "recurrent", "convolutions"]
    parser.add_argument("--only", default=",".join(parts), help="parts to measure: " + ", ".join(parts))
    parser.add_argument("--part", help="measure one part in this process")
    parser.add_argument("--variants", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 0
    if arguments.part is not None:
        return 1 if measure(arguments.part, arguments.variants) else 0
    begin, table, failed = time.monotonic(), [], 0
    for part in arguments.only.split(","):  # a process of its own each: an illegal access ends only that
        command = [sys.executable, __file__, "--part", part, *["--variants"] * arguments.variants]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        seen, _, lines = done.stdout.partition(MARK)
        print(seen, flush=True)
        table.append(lines.strip() or f"FAILED {part}: exit {done.returncode}")
        failed += done.returncode != 0
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {time.monotonic() - begin:.0f} s")
    print(f"{'kernel':60} {'':8} {'error':>9} {'us':>9} {'torch us':>9} {'ratio':>6} {'floor us':>8}")
    print("\n".join(table))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
