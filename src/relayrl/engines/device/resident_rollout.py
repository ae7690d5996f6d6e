"""Columns of a rollout that stays on its device: written step by step, read by the learner, never sent home."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from relayrl.data.columns import LaneHeader
from relayrl.data.trees import leaf_dtype

if TYPE_CHECKING:
    from uuid import UUID

    from torch import Tensor

    from relayrl.algorithms.updates.device_update import DeviceUpdate
    from relayrl.engines.device.resident_memory import ResidentMemory
    from relayrl.envs.environment_contract import AgentGroup
    from relayrl.envs.native.dense_step import DenseGroupStep


class ResidentRollout:
    """`[T, L, …]` columns of one group; lanes are environment-major."""

    def __init__(
        self,
        group: AgentGroup,
        env_ids: tuple[UUID, ...],
        num_steps: int,
        max_episode_steps: int,
        device: torch.device,
    ) -> None:
        num_envs = len(env_ids)
        spaces = group.observation_space, group.action_space
        self.header = LaneHeader(group.name, env_ids, group.agent_ids, *spaces)
        self.num_steps, self.num_envs, self.num_agents = num_steps, num_envs, group.num_agents
        self.num_lanes = lanes = num_envs * group.num_agents
        obs_shape, action_shape = group.observation_space.shape or (), group.action_space.shape or ()
        obs_dtype, action_dtype = (_torch_dtype(leaf_dtype(space)) for space in spaces)
        self.num_slots = (num_steps - 1) // max_episode_steps + 1

        def column(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((num_steps, lanes, *shape), dtype=dtype, device=device)

        self.obs, self.action = column(obs_shape, obs_dtype), column(action_shape, action_dtype)
        self.logp, self.reward = column(()), column(())
        self.terminated, self.truncated = column((), torch.bool), column((), torch.bool)
        self.next_obs = column(obs_shape, obs_dtype)
        """What followed each row, before any episode began anew."""
        self.last_obs = torch.zeros((lanes, *obs_shape), dtype=obs_dtype, device=device)
        self.valid = ~column((), torch.bool)
        self.memory: ResidentMemory | None = None
        """What the lanes remember, where their policy has a memory."""

    @property
    def ended(self) -> Tensor:
        """[T, L] where an episode is over."""
        return self.terminated | self.truncated

    def finish_row(self, t: int, step: DenseGroupStep, final: Tensor) -> None:
        """Write what came of step `t`; `final` [L, …] is what the lanes saw before any episode began anew."""
        self.reward[t].copy_(step.reward.view(-1))
        self.terminated[t].copy_(step.terminated.view(-1))
        self.truncated[t].copy_(step.truncated.view(-1))
        if final.data_ptr() != self.next_obs[t].data_ptr():
            self.next_obs[t].copy_(final)

    def final_obs(self, update: DeviceUpdate) -> Tensor:
        """[S, L, …] what lanes saw when they were truncated. A lane is truncated at most once in `max_episode_steps` steps, so
        S is small; values are needed of no other observation that ended an episode."""
        return self.next_obs[self.truncated_rows(update), torch.arange(self.num_lanes, device=self.truncated.device)]

    def truncated_rows(self, update: DeviceUpdate) -> Tensor:
        """[S, L] on which rows that was."""
        return update.truncated_rows(self.truncated, self.num_slots)

    def rows(self, num_steps: int) -> ResidentRollout:
        """Its first rows, as a rollout of their own that shares its memory."""
        if num_steps == self.num_steps:
            return self
        part: ResidentRollout = object.__new__(ResidentRollout)
        part.__dict__.update(self.__dict__)
        part.num_steps = num_steps
        for name in ("obs", "action", "logp", "reward", "terminated", "truncated", "valid", "next_obs"):
            setattr(part, name, getattr(self, name)[:num_steps])
        return part


def _torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, dtype)).dtype
