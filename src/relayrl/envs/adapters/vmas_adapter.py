"""VMAS scenarios as a `VectorEnvironment`: all environments of a scenario in one batch of torch tensors.

Responsible for auto-reset (VMAS leaves ended environments to its caller), the grouping of agents, and VMAS's randomness. Not
responsible for moving arrays between devices: on `"cpu"` they are NumPy views of VMAS's tensors, elsewhere the tensors
themselves, which `on_host` can bring home.

Two things differ from other environments:

- VMAS draws for all environments of a batch from one generator, so an environment's randomness depends on the others and
  `independent_streams` is False. Each environment has its own stream all the same: VMAS would share one between all of
  them in the process, and on an accelerator take the generator that the learner uses.
- A scenario has no horizon of its own; `max_steps` is 100 unless given, and None means episodes end by the scenario alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from relayrl.data.trees import Array, index, map_tree
from relayrl.envs.adapters import vmas_scenarios
from relayrl.envs.adapters.vmas_random import VmasStream
from relayrl.envs.agent_groups import group_agents
from relayrl.envs.environment_contract import (
    AgentGroup,
    FinalObservations,
    GroupObservation,
    GroupStep,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    new_env_ids,
)
from relayrl.envs.rendering import Drawing, RenderMode, picture_of
from relayrl.errors import ConfigError, EnvError, EnvironmentFailedError, UnknownNameError

_SET_HERE = ("num_envs", "seed", "wrapper", "wrapper_kwargs", "dict_spaces", "grad_enabled", "terminated_truncated")


def make(name: str, *, device: str = "cpu", max_steps: int | None = 100, **options: Any) -> VectorEnvironment:
    """Make `vmas:simple_spread` with VMAS's keyword `options`, such as `n_agents` or `continuous_actions`.

    Continuous actions outside their range are clamped unless `clamp_actions=False`, which makes them an error.
    """
    known = vmas_scenarios.known_names()
    if name not in known:
        raise UnknownNameError("VMAS scenario", name, known)
    refused = sorted(set(options) & set(_SET_HERE))
    if refused:
        raise ConfigError(f"vmas:{name} takes no option {refused[0]!r}: RelayRL sets it")
    _require_device(device)
    return VmasEnvironment(name, device, {"max_steps": max_steps, "clamp_actions": True, **options})


def _require_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise ConfigError(f"device {device!r} cannot be used: {error}") from error


class VmasEnvironment(VectorEnvironment):
    """A batch of environments of one VMAS scenario; all agents of an environment act in each step and end together."""

    independent_streams = False
    drawing = Drawing((RenderMode.RGB_ARRAY, RenderMode.HUMAN), 10.0, ("rgb_array", "human"))

    def __init__(self, name: str, device: str, options: Mapping[str, Any]) -> None:
        self.device = device
        self._name = name
        self._options = dict(options)
        # Building one environment on the host gives the spaces before the number of environments is known.
        self._stream = VmasStream(device, vmas_scenarios.shared_random_state())
        with self._stream.in_use():
            probe = vmas_scenarios.build(name, 1, "cpu", self._options)
        names = [agent.name for agent in probe.agents]
        self.groups: Mapping[str, AgentGroup] = group_agents(
            names,
            dict(zip(names, map(vmas_scenarios.gymnasium_space, probe.observation_space), strict=True)),
            dict(zip(names, map(vmas_scenarios.gymnasium_space, probe.action_space), strict=True)),
        )
        self._places = {name: i for i, name in enumerate(names)}
        self._env: Any = None
        self._seed: int | None = None
        self._num_steps = 0
        self._seen: dict[str, Any] = {}

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        if self._env is not None:
            raise EnvError(f"vmas:{self._name} has {self.num_envs} environments already; make another environment")
        with self._stream.in_use():
            self._env = vmas_scenarios.build(self._name, num_envs, self.device, self._options)
        self.env_ids = new_env_ids(num_envs)
        lanes = {name: (num_envs, group.num_agents) for name, group in self.groups.items()}
        self._active = {
            name: self._out(torch.ones(shape, dtype=torch.bool, device=self.device)) for name, shape in lanes.items()
        }
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        self._require_envs()
        if env_ids is not None and not self._seen:
            raise EnvError("the first reset() begins all environments; leave env_ids out")
        chosen = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        chosen[self._indices(self.env_ids if env_ids is None else env_ids)] = True
        if seed is not None:
            self._seed, self._num_steps = seed, 0
            self._stream.seed(seed)
        with self._stream.in_use():
            first = self._begin_episodes(chosen)
        self._seen = self._merge(first, chosen)
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        self._require_envs()
        if not self._seen:
            raise EnvError("step() before reset(); reset the environment first")
        sent = self._actions_by_agent(actions)
        self._num_steps += 1
        try:
            with self._stream.in_place():
                observations, rewards, terminated, truncated, _ = vmas_scenarios.step(self._env, sent)
        except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise self._failure(error) from error
        over = terminated | truncated
        self._seen = last = self._by_group(observations)
        any_over = bool(over.any())
        if any_over:
            with self._stream.in_use():
                first = self._begin_episodes(over)
            self._seen = self._merge(first, over)
        reward = self._by_group(rewards)
        return VectorStep(
            {
                name: GroupStep(
                    map_tree(self._out, self._seen[name]),
                    self._active[name],
                    reward=self._out(reward[name].to(torch.float32)),
                    terminated=self._per_lane(terminated, group),
                    truncated=self._per_lane(truncated, group),
                    final=self._final(last[name], over, group) if any_over else None,
                )
                for name, group in self.groups.items()
            },
            episode_over=self._out(over),
        )

    def build_observation(self) -> VectorReset:
        return VectorReset(
            {name: GroupObservation(map_tree(self._out, self._seen[name]), self._active[name]) for name in self.groups}
        )

    def frames(self, envs: Sequence[int], mode: RenderMode = RenderMode.RGB_ARRAY) -> list[Array]:
        self._require_envs()
        render = partial(vmas_scenarios.render, self._env, mode=mode.value)
        if mode is RenderMode.HUMAN:
            render(env_index=envs[0])
            return []
        return [picture_of(partial(render, env_index=b)) for b in envs]

    def _begin_episodes(self, chosen: torch.Tensor) -> dict[str, Any]:
        """Reset the chosen environments; the observations are right in those alone."""
        if bool(chosen.all()):
            self._env.reset(return_observations=False)
        else:
            for b in chosen.nonzero().flatten().tolist():
                self._env.reset_at(b, return_observations=False)
        observations = self._env.get_from_scenario(
            get_observations=True, get_rewards=False, get_infos=False, get_dones=False
        )
        return self._by_group(observations[0])

    def _merge(self, first: dict[str, Any], chosen: torch.Tensor) -> dict[str, Any]:
        """First observations in the chosen environments; in the others what they saw: VMAS may draw fresh noise if asked."""
        if not self._seen:
            return first

        def pick(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
            return torch.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return {name: map_tree(pick, first[name], self._seen[name]) for name in self.groups}

    def _by_group(self, values: Sequence[Any]) -> dict[str, Any]:
        """VMAS's list with a `[B, …]` tree per agent as a `[B, N, …]` tree per group."""
        return {
            name: map_tree(
                lambda *leaves: torch.stack(leaves, dim=1), *(values[self._places[agent]] for agent in group.agent_ids)
            )
            for name, group in self.groups.items()
        }

    def _actions_by_agent(self, actions: Mapping[str, Any]) -> list[torch.Tensor]:
        sent: list[Any] = [None] * len(self._places)
        for name, group in self.groups.items():
            if name not in actions:
                raise EnvError(f"no actions for group {name!r}; give one tree for each of {list(self.groups)}")
            given = actions[name]
            # A copy, as a view of a read-only NumPy array would make torch warn.
            is_here = isinstance(given, torch.Tensor)
            tensor = given if is_here else torch.from_numpy(np.array(given)).to(self.device)
            expected = (self.num_envs, group.num_agents, *(group.action_space.shape or ()))
            if tuple(tensor.shape) != expected:
                raise EnvError(f"actions of group {name!r} have shape {tuple(tensor.shape)}, not {expected}")
            rows = tensor.reshape(self.num_envs, group.num_agents, -1)
            for agent, own in zip(group.agent_ids, rows.unbind(1), strict=True):
                sent[self._places[agent]] = own
        return sent

    def _per_lane(self, per_env: torch.Tensor, group: AgentGroup) -> Any:
        return self._out(per_env[:, None].repeat(1, group.num_agents))

    def _final(self, last: Any, over: torch.Tensor, group: AgentGroup) -> FinalObservations:
        envs = over.nonzero().flatten()
        agents = torch.arange(group.num_agents, device=envs.device)
        return FinalObservations(
            self._out(envs.repeat_interleave(group.num_agents)),
            self._out(agents.repeat(len(envs))),
            map_tree(lambda leaf: self._out(leaf.flatten(0, 1)), index(last, envs)),
        )

    def _out(self, tensor: torch.Tensor) -> Any:
        """A tensor as this environment's callers see it: the same memory, as NumPy on the host."""
        return tensor.numpy() if self.device == "cpu" else tensor

    def _indices(self, env_ids: Sequence[uuid.UUID]) -> list[int]:
        places = {env_id: b for b, env_id in enumerate(self.env_ids)}
        unknown = [env_id for env_id in env_ids if env_id not in places]
        if unknown:
            raise EnvError(f"no environment has the id {unknown[0]}; ids are those that init_num_envs() gave")
        return [places[env_id] for env_id in env_ids]

    def _require_envs(self) -> None:
        if self._env is None:
            raise EnvError("there are no environments yet; call init_num_envs() first")

    def _failure(self, error: Exception) -> EnvironmentFailedError:
        reason = f"all {self.num_envs} environments of vmas:{self._name}: {type(error).__name__}: {error}"
        return EnvironmentFailedError(reason, env_id=self.env_ids[0], seed=self._seed, step=self._num_steps)
