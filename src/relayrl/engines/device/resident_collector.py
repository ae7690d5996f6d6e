"""The collector of a device-resident run: steps a batched environment with policies on the same device, into columns there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from relayrl.accelerator.device_accelerator import fastest_step, fused_rollout_of
from relayrl.algorithms.updates.device_sequences import RecurrentDeviceUpdate
from relayrl.engines.device.ended_episodes import ResidentEpisodes
from relayrl.engines.device.resident_memory import ResidentMemory
from relayrl.engines.device.resident_rollout import ResidentRollout
from relayrl.errors import ConfigError
from relayrl.models.heads.action_head import NoiseKind
from relayrl.runtime.collector import EndedEpisodes, RolloutCollector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from relayrl.algorithms.updates.device_update import DeviceUpdate
    from relayrl.data.columns import Rollout
    from relayrl.engines.device.replay_actor import ReplayActor
    from relayrl.envs.native.batched_environment import BatchedEnvironment
    from relayrl.models.acting.exploration import Exploration
    from relayrl.models.heads.action_head import ActionHead


class ResidentCollector(RolloutCollector):
    """Fills `rollouts` in place; capturable in a CUDA graph after it ran once."""

    def __init__(
        self,
        env: BatchedEnvironment,
        actors: Mapping[str, DeviceUpdate | ReplayActor],
        num_steps: int,
        seed: int,
        noise_seed: int,
    ) -> None:
        self.env, self._actors = env, dict(actors)
        device = torch.device(env.device)
        self.generator = torch.Generator(device).manual_seed(noise_seed)
        limit = env.blueprint.max_episode_steps
        self.rollouts = {
            name: ResidentRollout(group, env.env_ids, num_steps, limit, device) for name, group in env.groups.items()
        }
        for name, actor in actors.items():
            if isinstance(actor, RecurrentDeviceUpdate):
                rollout = self.rollouts[name]
                rollout.memory = ResidentMemory(actor.policy, num_steps, rollout.num_lanes, device)
        self._episodes = ResidentEpisodes(env.groups, env.num_envs, device)
        self._num_steps = 0
        self._step, self._fused = fastest_step(env), fused_rollout_of(env, actors)
        self.num_uncounted = 0
        """Episodes that ended and were not kept for `take_ended`, so far."""
        env.reset(seed=seed)

    def fill(self, num_steps: int) -> dict[str, ResidentRollout]:
        """Step every environment so many times; gives the columns that were written."""
        rollouts = self.filled(num_steps)
        noise = {name: self._noise(actor.policy.head, name, num_steps) for name, actor in self._actors.items()}
        if self._fused is not None and num_steps == next(iter(self.rollouts.values())).num_steps:
            for name, rollout in rollouts.items():
                self._fused(rollout, noise[name])
        else:
            self._fill_row_by_row(rollouts, noise, num_steps)
        self._episodes.add(rollouts)
        return rollouts

    def rehearse(self, num_steps: int) -> dict[str, ResidentRollout]:
        """What of `fill` is no user's code, for a rehearsal: all where a kernel fills the rollout, else the acting of a row."""
        if self._fused is not None:
            return self.fill(num_steps)
        for name, rollout in self.rollouts.items():
            actor = self._actors[name]
            self._act(actor, rollout, 0, self._noise(actor.policy.head, name, 1)[0])
        self._episodes.add(self.rollouts)
        return self.rollouts

    def filled(self, num_steps: int) -> dict[str, ResidentRollout]:
        """The columns that `fill` writes, also where a captured one is replayed."""
        return {name: rollout.rows(num_steps) for name, rollout in self.rollouts.items()}

    def _fill_row_by_row(
        self, rollouts: Mapping[str, ResidentRollout], noise: Mapping[str, Tensor], num_steps: int
    ) -> None:
        for t in range(num_steps):
            actions = {}
            for name, rollout in rollouts.items():
                rollout.obs[t].copy_(self._observations(name))
                self._act(self._actors[name], rollout, t, noise[name][t])
                taken = rollout.action[t]
                actions[name] = taken.view(rollout.num_envs, rollout.num_agents, *taken.shape[1:])
            step = self._step(actions)
            for name, rollout in rollouts.items():
                final = step.final[name]
                rollout.finish_row(t, step.groups[name], final.view(-1, *final.shape[2:]))
                if rollout.memory is not None:
                    rollout.memory.end_row(rollout.terminated[t] | rollout.truncated[t])
        for name, rollout in rollouts.items():
            rollout.last_obs.copy_(self._observations(name))

    @staticmethod
    def _act(actor: DeviceUpdate | ReplayActor, rollout: ResidentRollout, t: int, noise: Tensor) -> None:
        out = rollout.action[t], rollout.logp[t]
        if rollout.memory is None:
            actor.act_into(rollout.obs[t], noise, out)
            return
        assert isinstance(actor, RecurrentDeviceUpdate)
        rollout.memory.begin_row(t)
        actor.act_remembering(rollout.obs[t], noise, rollout.memory.actor, out)

    def _observations(self, name: str) -> Tensor:
        """[L, …] what a group sees now: the environment's own array."""
        obs: Any = self.env.build_observation().groups[name].obs
        lanes: Tensor = obs.reshape(-1, *obs.shape[2:])
        return lanes

    def count(self, num_steps: int) -> None:
        """Steps were taken: a graph that is replayed counts nothing itself."""
        self._num_steps += num_steps

    def _noise(self, head: ActionHead, name: str, num_steps: int) -> Tensor:
        assert head.noise is not None
        kind, width = head.noise
        draw = torch.rand if kind is NoiseKind.UNIFORM else torch.randn
        shape = (num_steps, self.rollouts[name].num_lanes, width)
        return draw(shape, generator=self.generator, device=self.generator.device)

    def take_ended(self) -> EndedEpisodes:
        ended, num_more = self._episodes.fetch()
        self.num_uncounted += num_more
        return ended

    @property
    def num_steps(self) -> int:
        return self._num_steps

    def restart(self) -> None:
        self.env.reset()
        for memory in self._memories().values():
            memory.forget()

    def explore(self, exploration: Mapping[str, Exploration]) -> None:
        """Policies explore by their own distributions."""

    def collect(self, policy_version: int | Mapping[str, int], num_steps: int | None = None) -> NoReturn:
        raise ConfigError("the rollouts of a device-resident run stay on its device; set device=cpu to collect them")

    def cut_off(self, policy_version: int | Mapping[str, int], error: BaseException) -> dict[str, Rollout]:
        del policy_version, error
        return {}

    def _memories(self) -> dict[str, ResidentMemory]:
        return {name: rollout.memory for name, rollout in self.rollouts.items() if rollout.memory is not None}

    def state_dict(self) -> dict[str, Any]:
        return {
            "generator": self.generator.get_state(),
            "generator_of": self.generator.device.type,
            "environment": self.env.get_state(),
            "episodes": self._episodes.state_dict(),
            "num_steps": self._num_steps,
            "memory": {name: memory.state_dict() for name, memory in self._memories().items()},
        }

    def load_state_dict(self, state: dict[str, Any], *, seed: int) -> bool:
        if "generator" not in state:  # of a run on the host, whose episodes cannot go on here
            self.env.reset(seed=seed)
            for memory in self._memories().values():
                memory.forget()
            return False
        if state["generator_of"] == self.generator.device.type:
            self.generator.set_state(state["generator"].cpu())
        else:  # generators of other devices draw other numbers
            self.generator.manual_seed(seed)
        self.env.set_state(state["environment"])
        self._episodes.load_state_dict(state["episodes"])
        self._num_steps = state["num_steps"]
        for name, memory in self._memories().items():
            memory.load_state_dict(state["memory"][name])
        return True
