"""Returns and lengths of episodes that end on a device: added up there, kept in a ring, and fetched when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from relayrl.accelerator.device_accelerator import fused_episodes
from relayrl.runtime.collector import EndedEpisodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from relayrl.engines.device.resident_rollout import ResidentRollout
    from relayrl.envs.environment_contract import AgentGroup

CAPACITY = 1024
"""Episodes that are kept until they are fetched, the newest; more are counted, and forgotten."""


class ResidentEpisodes:
    """Adds up rewards of all agents, rollout by rollout; returns are float64, as elsewhere."""

    def __init__(self, groups: Mapping[str, AgentGroup], num_envs: int, device: torch.device) -> None:
        self._num_agents = {name: group.num_agents for name, group in groups.items()}
        width = sum(self._num_agents.values())
        self._sums = torch.zeros((num_envs, width + 1), dtype=torch.float64, device=device)  # of the running episodes
        self._ring = torch.zeros((CAPACITY + 1, width + 1), dtype=torch.float64, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._fetched = 0
        self._add_by_kernels = fused_episodes(tuple(self._num_agents.values()), device)

    def add(self, rollouts: Mapping[str, ResidentRollout]) -> None:
        """Count the steps of a rollout; capturable."""
        own = [rollouts[name] for name in self._num_agents]
        if self._add_by_kernels is not None:
            self._add_by_kernels(own[0], self._sums, self._ring, self._count)
            return
        rewards = torch.cat([r.reward.view(r.num_steps, r.num_envs, -1).to(torch.float64) for r in own], -1)
        ends = (own[0].terminated | own[0].truncated).view(*rewards.shape[:2], -1)[..., 0]
        ones = torch.ones_like(rewards[..., :1])
        # [T + 1, B, W + 1] sums up to each row, from where the last rollout stopped: rewards of all agents, and steps.
        totals = torch.cat([self._sums[None], torch.cat([rewards, ones], -1)]).cumsum(0)
        rows = torch.arange(1, len(totals), device=ends.device)[:, None]
        last_end = torch.where(ends, rows, 0).cummax(0).values
        before = torch.cat([torch.zeros_like(last_end[:1]), last_end[:-1]])
        until, total = _at(totals, before), totals[1:]
        episodes = total - torch.where((before > 0)[..., None], until, 0.0)
        self._keep(episodes.flatten(0, 1), ends.flatten())
        at_last = _at(totals, last_end[-1:])[0]
        self._sums.copy_(totals[-1] - torch.where((last_end[-1] > 0)[:, None], at_last, 0.0))

    def _keep(self, episodes: Tensor, ended: Tensor) -> None:
        """Put those of `episodes` [M, W + 1] into the ring that `ended` [M]."""
        place = ended.cumsum(0)
        # Of more than fit, the last stay: no two rows of the ring are written at once.
        keeps = ended & (place[-1] - place < CAPACITY)
        where = torch.where(keeps, (self._count + place - 1) % CAPACITY, CAPACITY)
        self._ring.index_put_((where,), episodes)
        self._count += place[-1]

    def fetch(self) -> tuple[EndedEpisodes, int]:
        """Episodes since the last call, as many as were kept, and how many more there were. Waits for the device."""
        count = int(self._count.item())
        num_new, self._fetched = count - self._fetched, count
        kept = min(num_new, CAPACITY)
        numbers = torch.arange(count - kept, count, device=self._ring.device) % CAPACITY
        rows = self._ring[numbers].cpu().numpy()
        ended = EndedEpisodes(returns=rows[:, :-1].mean(1).tolist(), lengths=rows[:, -1].astype(int).tolist())
        first = 0
        for name, num_agents in self._num_agents.items():
            own = rows[:, first : first + num_agents]
            ended.group_returns[name] = own.mean(1).tolist()
            ended.agent_returns[name] = [own] if kept else []
            first += num_agents
        return ended, num_new - kept

    def state_dict(self) -> dict[str, Any]:
        """What a run goes on from, with the episodes that nobody has fetched yet."""
        return {
            "sums": self._sums.cpu(),
            "ring": self._ring.cpu(),
            "count": int(self._count.item()),
            "fetched": self._fetched,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._sums.copy_(state["sums"])
        self._count.fill_(int(state["count"]))
        self._fetched = int(state.get("fetched", state["count"]))  # older checkpoints have no ring
        if "ring" in state:
            self._ring.copy_(state["ring"])


def _at(totals: Tensor, rows: Tensor) -> Tensor:
    """[R, B, W] the totals of `rows` [R, B]."""
    return totals.gather(0, rows[..., None].expand(-1, -1, totals.shape[-1]))
