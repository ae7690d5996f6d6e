"""The collector: steps a vector environment with the newest policies and fills columns. No objects per step, no torch.

Lanes are environment-major: world `b`'s agent `n` of a group is lane `b * N + n`, so `[B, N, …]` arrays are `[L, …]` by a
reshape that copies nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relayrl.data.builders import RolloutBuilder
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.trees import Array, Tree, map_tree
from relayrl.envs.contract import AgentGroup, GroupObservation, VectorEnvironment, VectorStep
from relayrl.models.actor import Actor


class Collector:
    """Collects blocks of `num_steps` steps; episodes run on from block to block."""

    def __init__(
        self,
        env: VectorEnvironment,
        actors: Mapping[str, Actor],
        *,
        num_steps: int,
        seed: int,
        rng: np.random.Generator,
    ) -> None:
        self._env, self._actors, self._num_steps, self._rng = env, dict(actors), num_steps, rng
        self._builders = {name: self._make_builder(group, actors[name]) for name, group in env.groups.items()}
        self._num_agents = sum(group.num_agents for group in env.groups.values())
        self._return, self._length = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
        self._ended_returns: list[float] = []
        self._ended_lengths: list[int] = []
        self._views: Mapping[str, GroupObservation] = env.reset(seed=seed).groups

    def _make_builder(self, group: AgentGroup, actor: Actor) -> RolloutBuilder:
        header = LaneHeader(group.name, self._env.env_ids, group.agent_ids, group.observation_space, group.action_space)
        mask_width = actor.head.mask_width if group.masks_actions else None
        return RolloutBuilder(header, self._num_steps, mask_width=mask_width)

    def collect(self, policy_version: int) -> dict[str, Rollout]:
        """Step every world `num_steps` times; gives one rollout per group."""
        for _ in range(self._num_steps):
            step = self._env.step({name: self._act(name, view) for name, view in self._views.items()})
            for name, group in step.groups.items():
                self._builders[name].finish_row(
                    group.reward, group.terminated, group.truncated, failed=step.failed, final=group.final
                )
            self._track_episodes(step)
            self._views = step.groups
        return {
            name: builder.build(lanes(self._views[name].obs), policy_version)
            for name, builder in self._builders.items()
        }

    def _act(self, name: str, view: GroupObservation) -> Array:
        actor = self._actors[name]
        obs = lanes(view.obs)
        mask = None if view.action_mask is None else lanes(view.action_mask)
        action = actor.act(obs, mask, self._rng)
        self._builders[name].add(obs, action, view.active.reshape(-1), mask)
        taken = actor.head.to_environment(action)
        return taken.reshape(*view.active.shape, *taken.shape[1:])

    def _track_episodes(self, step: VectorStep) -> None:
        total: Any = 0.0
        for group in step.groups.values():
            total = total + group.reward.sum(1)
        self._return += total / self._num_agents
        self._length += 1
        if not step.episode_over.any():
            return
        whole = step.episode_over if step.failed is None else step.episode_over & ~step.failed
        self._ended_returns += self._return[whole].tolist()
        self._ended_lengths += self._length[whole].tolist()
        self._return[step.episode_over] = 0.0
        self._length[step.episode_over] = 0

    def take_episodes(self) -> tuple[list[float], list[int]]:
        """Returns (mean over agents) and lengths of episodes that ended since the last call; failed ones left out."""
        taken = self._ended_returns, self._ended_lengths
        self._ended_returns, self._ended_lengths = [], []
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The generator that draws actions."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue drawing from `state_dict`; worlds begin new episodes."""
        self._rng.bit_generator.state = state["rng"]


def lanes(tree: Tree) -> Any:
    """`[B, N, …]` as `[L, …]`."""
    return map_tree(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)
