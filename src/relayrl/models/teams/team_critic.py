"""The critic of a team: attention over however many teammates are there.

An entity is what one agent contributes. The value sees what every teammate observes. The baseline of an agent sees what it
observes, and what its teammates observe and do: what the team could expect if only this agent's action were still open
(Cohen et al., 2021, eq. 6 and 9). Agents that are absent are masked, so a team of any size fits the same parameters.

    e_i = norm(σ(E o_i)),   e'_i = norm(σ(E o_i + A a_i))                entities, without and with the action
    z_i = norm(e_i + Σ_j softmax_j(q_i k_j / √D) v_j)                    what agent i attends to, head by head
    estimate = MLP(z, log(1 + number of agents))                         of the mean z: the value; of z_i: a baseline

Attention has a width of its own: what happens for every agent and pair of agents is narrow, the layers behind it need not be.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from relayrl.errors import ConfigError
from relayrl.models.network_settings import GoalConditioning, NetworkSettings
from relayrl.models.networks.input_layout import InputLayout, SideBySide, plain_numbers
from relayrl.models.networks.mlp import MODULES, initialize
from relayrl.models.networks.network_factory import BuiltInNetworks, NetworkFactory

DEFAULT_WIDTH = 128
OUTPUT_GAIN = 0.01
"""Small last layer: what follows a normalisation is of size 1, whatever the rewards are, and would be bootstrapped from."""


class _Entities(NamedTuple):
    """What agents contribute, [M, N, S], and what their attention is made of, [M, H, N, D] each."""

    entities: Tensor
    query: Tensor
    key: Tensor
    attended: Tensor


class TeamNetworks(NamedTuple):
    """What makes the networks in front of the attention and behind it."""

    embedding: NetworkFactory
    estimate: NetworkFactory

    @classmethod
    def built_in(cls, network: NetworkSettings) -> TeamNetworks:
        """The embedding is the first layer, with convolutions before it for images; the others come behind, one at least."""
        behind = network.hidden_sizes[1:] or network.hidden_sizes or (DEFAULT_WIDTH,)
        plain = network.model_copy(update={"hidden_sizes": (), "goal_conditioning": GoalConditioning.NONE})
        return cls(BuiltInNetworks(plain), BuiltInNetworks(plain.model_copy(update={"hidden_sizes": behind})))


class TeamCritic(nn.Module):
    """Values `[M]` and baselines `[M, N]` of teams of up to N agents."""

    def __init__(
        self,
        encoder: InputLayout,
        num_actions: int,
        attention_size: int,
        num_heads: int,
        network: NetworkSettings,
        networks: TeamNetworks,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if attention_size % num_heads:
            raise ConfigError(f"num_attention_heads {num_heads} does not divide attention_size {attention_size}")
        self.num_heads = num_heads
        self.observed = networks.embedding(encoder, attention_size, math.sqrt(2.0), generator)
        self.acted = nn.Linear(num_actions, attention_size)
        self.entity_norm, self.output_norm = nn.LayerNorm(attention_size), nn.LayerNorm(attention_size)
        self.query, self.key, self.attended = (nn.Linear(attention_size, attention_size, bias=False) for _ in range(3))
        # What the attention gives is a mean, which does not tell how many there are.
        counted = SideBySide([plain_numbers(attention_size), plain_numbers(1)])
        self.estimate = networks.estimate(counted, 1, OUTPUT_GAIN, generator)
        initialize(self.acted, network.initialization, math.sqrt(2.0), generator)
        for layer in (self.query, self.key, self.attended):
            initialize(layer, network.initialization, 1.0, generator)
        self.activation = MODULES[network.activation]()

    def value(self, features: Tensor, present: Tensor) -> Tensor:
        """[M] what the team expects, given what its `present` [M, N] agents observe: `features` [M, N, F]."""
        return self._value(self._entities(self.observed(features)), present)

    def value_and_baseline(self, features: Tensor, actions: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """The value, and [M, N] what the team expects while one agent's own action is open; `actions` [M, N, A]."""
        observed = self.observed(features)
        own, others = self._entities(observed), self._entities(observed + self.acted(actions))
        return self._value(own, present), self._baseline(own, others, present)

    def _value(self, own: _Entities, present: Tensor) -> Tensor:
        weights = _weights(own.query @ own.key.transpose(-1, -2), present)
        pooled = self._residual(own.entities, weights @ own.attended)
        share = present.to(pooled.dtype)[..., None]
        mean = (pooled * share).sum(-2) / share.sum(-2).clamp(min=1.0)
        return self._estimate(mean, present.sum(-1))

    def _baseline(self, own: _Entities, others: _Entities, present: Tensor) -> Tensor:
        is_own = torch.eye(present.shape[-1], dtype=torch.bool, device=present.device)
        # Agent i attends to its own entity without its action, and to those of others with theirs.
        of_own = (own.query * own.key).sum(-1, keepdim=True)
        weights = _weights(torch.where(is_own, of_own, own.query @ others.key.transpose(-1, -2)), present)
        of_others = weights.masked_fill(is_own, 0.0) @ others.attended
        of_itself = weights.diagonal(dim1=-2, dim2=-1)[..., None] * own.attended
        count = present.sum(-1, keepdim=True).expand_as(present)
        return self._estimate(self._residual(own.entities, of_others + of_itself), count)

    def _entities(self, embedded: Tensor) -> _Entities:
        """Scores have unit variance: queries are divided by √D (Vaswani et al., 2017)."""
        entities = self.entity_norm(self.activation(embedded))
        query, key, attended = (self._per_head(part(entities)) for part in (self.query, self.key, self.attended))
        return _Entities(entities, query / math.sqrt(query.shape[-1]), key, attended)

    def _per_head(self, entities: Tensor) -> Tensor:
        """[M, H, N, D] of [M, N, H · D]."""
        return entities.reshape(*entities.shape[:-1], self.num_heads, -1).transpose(-2, -3)

    def _residual(self, entities: Tensor, attended: Tensor) -> Tensor:
        """[M, N, S] entities with what they attended to [M, H, N, D], one head's numbers beside the other's."""
        scaled: Tensor = self.output_norm(entities + attended.transpose(-2, -3).flatten(-2))
        return scaled

    def _estimate(self, pooled: Tensor, count: Tensor) -> Tensor:
        estimate: Tensor = self.estimate(torch.cat([pooled, count[..., None].to(pooled.dtype).log1p()], -1))
        return estimate.squeeze(-1)


def _weights(scores: Tensor, present: Tensor) -> Tensor:
    """[M, H, N, N] how much each attends to each; absent agents get nothing. An empty team attends to all, unused."""
    is_seen = present | ~present.any(-1, keepdim=True)
    return scores.masked_fill(~is_seen[:, None, None], -torch.inf).softmax(-1)
