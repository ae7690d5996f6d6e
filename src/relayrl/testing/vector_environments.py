"""Toy vector environments; import them from `relayrl.testing`.

`Herd` shows every rule of the contract at once in plain NumPy and is what the contract suite's own tests break on purpose.
`TorchCounting` stands in for an environment on a device. torch is imported when one is made, not before.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, index
from relayrl.envs.environment_contract import (
    SINGLE_AGENT,
    AgentGroup,
    FinalObservations,
    GroupObservation,
    GroupStep,
    StatefulEnvironment,
    VectorEnvironment,
    VectorReset,
    VectorStep,
    env_seeds,
    new_env_ids,
)
from relayrl.errors import EnvError


class Herd(VectorEnvironment, StatefulEnvironment):
    """Per environment, two sheep and a dog.

    After step `k` of an episode a sheep sees `[k, noise]`, with a noise in [0, 1) drawn per environment and step; the dog sees
    `[k]`, as does the global state. A sheep gets its action (0, 1 or 2; `k % 3` is forbidden) as a reward, the dog the sum
    of its two numbers. `sheep_0` terminates in step 2; `sheep_1` and the dog are truncated in step `length`, which ends the
    episode. Environments begin with `b % 3` steps already made, so that they do not end together. The noise is multiplied with
    `noise_scale`; with 0, all episodes of an environment are alike.
    """

    def __init__(self, *, length: int = 5, noise_scale: float = 1.0) -> None:
        self.groups = {
            "sheep": AgentGroup(
                "sheep",
                ("sheep_0", "sheep_1"),
                spaces.Box(0.0, np.float32(length), (2,), np.float32),
                spaces.Discrete(3),
                masks_actions=True,
            ),
            "dog": AgentGroup(
                "dog",
                ("dog",),
                spaces.Box(0.0, np.float32(length), (1,), np.float32),
                spaces.Box(-1.0, 1.0, (2,), np.float32),
            ),
        }
        self.state_space = spaces.Box(0.0, np.float32(length), (1,), np.float32)
        self._length = length
        self._noise_scale = noise_scale
        self._step_of = np.zeros(0, np.int64)  # [B] steps made in the running episode
        self._drawn = np.zeros(0, np.int64)  # [B] noises drawn since the last seed
        self._seeds = np.zeros(0, np.int64)  # [B]
        self._noise = np.zeros(0)  # [B]

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        self.env_ids = new_env_ids(num_envs)
        self._step_of, self._drawn = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._seeds, self._noise = np.zeros(num_envs, np.int64), np.zeros(num_envs)
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        chosen = self._indices_of(self.env_ids if env_ids is None else env_ids)
        if seed is not None:
            self._seeds[chosen] = np.array(env_seeds(seed, self.num_envs), np.int64)[chosen]
            self._drawn[chosen] = 0
        self._begin(chosen)
        return self._observe()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        sheep_action, dog_action = self._checked(actions)
        acting = self._active()
        self._step_of += 1
        self._draw(np.arange(self.num_envs))
        over = self._step_of == self._length
        ends = {"sheep": np.stack([self._step_of == 2, over], axis=1), "dog": over[:, None]}
        reward = {
            "sheep": np.where(acting["sheep"], sheep_action, 0).astype(np.float32),
            "dog": np.where(acting["dog"], dog_action.sum(axis=-1), 0.0).astype(np.float32),
        }
        terminated = {"sheep": ends["sheep"] & [True, False], "dog": np.zeros((self.num_envs, 1), bool)}
        end = self._observe()
        self._begin(np.flatnonzero(over))
        now = self._observe()
        groups = {}
        for name, group in now.groups.items():
            envs, agents = np.nonzero(ends[name])
            groups[name] = GroupStep(
                group.obs,
                group.active,
                group.action_mask,
                reward=reward[name],
                terminated=terminated[name],
                truncated=ends[name] & ~terminated[name],
                final=_final(end.groups[name], envs, agents) if envs.size else None,
            )
        final_state = index(end.state, over) if over.any() else None
        return VectorStep(groups, episode_over=over, state=now.state, final_state=final_state)

    def build_observation(self) -> VectorReset:
        return self._observe()

    def get_state(self) -> dict[str, Array]:
        names = ("step_of", "drawn", "seeds", "noise")
        return {name: getattr(self, f"_{name}").copy() for name in names}

    def set_state(self, state: Mapping[str, Array]) -> None:
        for name, array in state.items():
            setattr(self, f"_{name}", array.copy())

    def _observe(self) -> VectorReset:
        steps = self._step_of.astype(np.float32)[:, None, None]
        noise = self._noise.astype(np.float32)[:, None, None]
        sheep = np.repeat(np.concatenate([steps, noise], axis=-1), 2, axis=1)
        allowed = np.arange(3) != self._step_of[:, None, None] % 3
        active = self._active()
        groups = {
            "sheep": GroupObservation(sheep, active["sheep"], np.repeat(allowed, 2, axis=1)),
            "dog": GroupObservation(steps, active["dog"]),
        }
        return VectorReset(groups, steps[:, 0].copy())

    def _active(self) -> dict[str, Array]:
        everyone = np.ones((self.num_envs, 1), bool)
        return {"sheep": np.concatenate([self._step_of[:, None] < 2, everyone], axis=1), "dog": everyone}

    def _begin(self, envs: Array) -> None:
        self._step_of[envs] = envs % 3
        self._draw(envs)

    def _draw(self, envs: Array) -> None:
        for b in envs:
            self._noise[b] = np.random.default_rng([self._seeds[b], self._drawn[b]]).random() * self._noise_scale
        self._drawn[envs] += 1

    def _indices_of(self, env_ids: Sequence[uuid.UUID]) -> Array:
        if not set(env_ids) <= set(self.env_ids):
            raise EnvError("an id is not one of env_ids")
        return np.array([self.env_ids.index(env_id) for env_id in env_ids], np.int64)

    def _checked(self, actions: Mapping[str, Any]) -> tuple[Array, Array]:
        shapes = {"sheep": (self.num_envs, 2), "dog": (self.num_envs, 1, 2)}
        for name, shape in shapes.items():
            if name not in actions or np.shape(actions[name]) != shape:
                raise EnvError(f"actions of group {name!r} must have the shape {shape}")
        return np.asarray(actions["sheep"]), np.asarray(actions["dog"])


def _final(end: GroupObservation, envs: Array, agents: Array) -> FinalObservations:
    mask = None if end.action_mask is None else end.action_mask[envs, agents]
    return FinalObservations(envs, agents, index(end.obs, (envs, agents)), mask)


class TorchCounting(VectorEnvironment, StatefulEnvironment):
    """`CountingEnv` as torch tensors on `device`: after step `k` the observation is `[k]` and the reward `k`.

    Environment `b` terminates in step `terminate_at + b`. The default device is the host under a name other than `"cpu"`, which
    in the contract stands for NumPy.
    """

    def __init__(self, *, device: str = "cpu:0", terminate_at: int = 5) -> None:
        import torch

        self._torch: Any = torch
        self.device = device
        self.groups = {
            SINGLE_AGENT: AgentGroup(
                SINGLE_AGENT, (SINGLE_AGENT,), spaces.Box(0.0, np.inf, (1,), np.float32), spaces.Discrete(2)
            )
        }
        self._terminate_at = terminate_at

    def init_num_envs(self, num_envs: int) -> tuple[uuid.UUID, ...]:
        torch = self._torch
        self.env_ids = new_env_ids(num_envs)
        self._counts = torch.zeros(num_envs, 1, device=self.device)
        self._ends_at = self._terminate_at + torch.arange(num_envs, device=self.device)[:, None]
        self._active = torch.ones(num_envs, 1, dtype=torch.bool, device=self.device)
        return self.env_ids

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        chosen = self.env_ids if env_ids is None else env_ids
        if not set(chosen) <= set(self.env_ids):
            raise EnvError("an id is not one of env_ids")
        self._counts[[self.env_ids.index(env_id) for env_id in chosen]] = 0
        return self.build_observation()

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        if SINGLE_AGENT not in actions or tuple(actions[SINGLE_AGENT].shape) != (self.num_envs, 1):
            raise EnvError(f"actions of group {SINGLE_AGENT!r} must have the shape {(self.num_envs, 1)}")
        counts = self._counts + 1
        ended = counts == self._ends_at
        self._counts = counts.masked_fill(ended, 0)
        env, agent = ended.nonzero(as_tuple=True)
        group = GroupStep(
            self._counts[..., None].clone(),
            self._active,
            reward=counts,
            terminated=ended,
            truncated=self._torch.zeros_like(ended),
            final=FinalObservations(env, agent, counts[env, agent][:, None]) if len(env) else None,
        )
        return VectorStep({SINGLE_AGENT: group}, episode_over=ended[:, 0])

    def build_observation(self) -> VectorReset:
        return VectorReset({SINGLE_AGENT: GroupObservation(self._counts[..., None].clone(), self._active)})

    def get_state(self) -> dict[str, Array]:
        return {"counts": self._counts.cpu().numpy().copy()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        self._counts = self._torch.tensor(state["counts"], device=self.device)
