"""PPO in plain torch on a device: what the torch programs share. No host synchronisation inside an iteration.

Rollout, advantages and all minibatches are tensors on the device, in buffers that stay where they are. With `--graph` one
iteration (rollout, advantages, 4 epochs × 4 minibatches) is one CUDA graph. tf32 is allowed, as it is for RelayRL beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))

import torch
from measuring import process_start
from torch import Tensor, nn
from work import ADAM_EPSILON, CLIP, ENTROPY, GAE_LAMBDA, GAMMA, MAX_GRAD_NORM, VALUE

EPOCHS, MINIBATCHES = 4, 4


class Environments(Protocol):
    """A batch of environments on the device; they begin anew within a step."""

    observation: Tensor
    """[B, …], current."""
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards and ends [B]; `observation` follows."""


class ActorCritic(Protocol):
    """A network with its distribution."""

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, their log-probabilities [B], values [B]."""

    def evaluate(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values [M]."""


@dataclass(frozen=True)
class Program:
    """A program's name, its work as the table has it, and what makes its environments and network."""

    name: str
    num_envs: int
    rollout: int
    num_iterations: int
    learning_rate: float
    uses_graph: bool
    environments: Callable[[int, torch.device], Any]
    network: Callable[[], nn.Module]


class Ppo:
    """The buffers of a run, and one iteration over them."""

    def __init__(self, program: Program, arguments: argparse.Namespace, device: torch.device) -> None:
        num_envs, rollout = arguments.num_envs, arguments.rollout
        self.envs: Environments = program.environments(num_envs, device)
        self.network: Any = program.network().to(device)
        self._rate = torch.tensor(arguments.learning_rate, device=device)
        is_cuda = device.type == "cuda"
        self._adam = torch.optim.Adam(
            self.network.parameters(),
            lr=self._rate if is_cuda else arguments.learning_rate,
            eps=ADAM_EPSILON,
            capturable=is_cuda,
            fused=is_cuda,
        )
        self._learning_rate, self._rollout, self._num_rows = arguments.learning_rate, rollout, num_envs * rollout
        seen = self.envs.observation
        shape = (rollout, num_envs)
        self._obs = torch.zeros((*shape, *seen.shape[1:]), dtype=seen.dtype, device=device)
        self._action = torch.zeros((*shape, *self.envs.action_shape), dtype=self.envs.action_dtype, device=device)
        self._logp, self._value, self._reward, self._ended, self._advantage = (
            torch.zeros(shape, device=device) for _ in range(5)
        )
        self._running = torch.zeros(num_envs, device=device)
        self.finished = torch.zeros(2, device=device)
        """Sum and number of the returns of the episodes that ended in the newest rollout in which any did."""

    def set_progress(self, share: float) -> None:
        """The learning rate when that share of the run is over."""
        rate = self._learning_rate * (1 - share)
        self._rate.fill_(rate)
        if not self._adam.defaults["capturable"]:
            self._adam.param_groups[0]["lr"] = rate

    def iterate(self) -> None:
        """A rollout and its update."""
        self._collect()
        for _ in range(EPOCHS):
            order = torch.rand(self._num_rows, device=self._logp.device).argsort()
            for rows in order.chunk(MINIBATCHES):
                self._learn(rows)

    @torch.no_grad()
    def _collect(self) -> None:
        finished = torch.zeros_like(self.finished)
        for t in range(self._rollout):
            self._obs[t] = self.envs.observation
            self._action[t], self._logp[t], self._value[t] = self.network.act(self.envs.observation)
            reward, ended = self.envs.step(self._action[t])
            self._reward[t], self._ended[t] = reward, ended
            self._running += reward
            finished[0] += (self._running * ended).sum()
            finished[1] += ended.sum()
            self._running *= ~ended
        self.finished.copy_(torch.where(finished[1] > 0, finished, self.finished))
        next_value, advantage = self.network.act(self.envs.observation)[2], torch.zeros_like(self._value[0])
        for t in reversed(range(self._rollout)):
            goes_on = 1 - self._ended[t]
            error = self._reward[t] + GAMMA * next_value * goes_on - self._value[t]
            advantage = error + GAMMA * GAE_LAMBDA * goes_on * advantage
            self._advantage[t], next_value = advantage, self._value[t]

    def _learn(self, rows: Tensor) -> None:
        obs, action = (x.flatten(0, 1)[rows] for x in (self._obs, self._action))
        old_logp, old_value, advantage = (x.flatten()[rows] for x in (self._logp, self._value, self._advantage))
        target = advantage + old_value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        logp, entropy, value = self.network.evaluate(obs, action)
        ratio = (logp - old_logp).exp()
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        clipped = old_value + (value - old_value).clamp(-CLIP, CLIP)
        value_loss = 0.5 * torch.maximum((value - target) ** 2, (clipped - target) ** 2).mean()
        self._adam.zero_grad(set_to_none=False)
        (-surrogate.mean() + VALUE * value_loss - ENTROPY * entropy.mean()).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRAD_NORM)
        self._adam.step()


def captured(ppo: Ppo) -> Callable[[], None]:
    """One iteration as a CUDA graph, after two that warm up on a stream of their own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            ppo.iterate()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ppo.iterate()
    return graph.replay


def run(program: Program, description: str | None) -> None:
    """Train some times, print one JSON object."""
    arguments = _arguments(program, description)
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    if device.type == "cpu":
        torch.set_num_threads(1)  # more are slower for networks of this size
    first_update_s: float | None = None
    rates, returns = [], []
    for seed in range(arguments.repeats):
        torch.manual_seed(seed)
        ppo = Ppo(program, arguments, device)
        iterate = captured(ppo) if arguments.graph and device.type == "cuda" else ppo.iterate
        iterate()
        _wait(device)
        first_update_s = first_update_s or time.time() - process_start()
        start = time.perf_counter()
        for index in range(arguments.iterations):
            ppo.set_progress(index / arguments.iterations)
            iterate()
        _wait(device)
        seconds = time.perf_counter() - start
        rates.append(arguments.num_envs * arguments.rollout * arguments.iterations / seconds)
        total, count = ppo.finished.tolist()
        returns.append(total / count if count else None)
        del ppo, iterate
    figures = {
        "program": program.name,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "graph": arguments.graph,
        "num_envs": arguments.num_envs,
        "rollout": arguments.rollout,
        "num_iterations": arguments.iterations,
        "env_steps_per_s": statistics.median(rates),
        "rates": rates,
        "seconds_to_first_update": first_update_s,
        "mean_return": statistics.mean(known) if (known := [r for r in returns if r is not None]) else None,
        "returns": returns,
    }
    print(json.dumps(figures), flush=True)


def _arguments(program: Program, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=program.num_envs)
    parser.add_argument("--rollout", type=int, default=program.rollout, help="steps of each environment in a rollout")
    parser.add_argument("--iterations", type=int, default=program.num_iterations)
    parser.add_argument("--learning-rate", type=float, default=program.learning_rate, help="linear to 0")
    parser.add_argument("--repeats", type=int, default=3, help="whole runs, each with another seed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--graph", action=argparse.BooleanOptionalAction, default=program.uses_graph)
    parser.add_argument("--tiny", action="store_true", help="8 environments, 2 iterations: to see that it runs")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.num_envs, arguments.iterations = 8, 2
    return arguments


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
