"""`rnd`: random network distillation (Burda, Edwards, Storkey, Klimov, 2018, arXiv:1810.12894).

A predictor learns the outputs of a random network that never changes. It is right about observations that it was often
trained on, and wrong about others:

    i_t = mean_k (f̂_k(s_{t+1}) − f_k(s_{t+1}))²,  s normalised and clipped to ±5
"""

from __future__ import annotations

import torch
from torch import Tensor

from relayrl.data.columns import LaneHeader
from relayrl.models.networks.network_factory import BuiltInNetworks
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.training.signals.novelty import InputFeatures, NoveltyModel, NoveltySignal
from relayrl.training.signals.signal_settings import RndSettings
from relayrl.training.signals.transitions import TransitionBatch


class RandomNetworkModel(NoveltyModel):
    """A fixed target and its predictor."""

    def __init__(self, settings: RndSettings, header: LaneHeader, generator: torch.Generator) -> None:
        super().__init__()
        encoder = ObservationEncoder(header.observation_space)
        make = BuiltInNetworks(settings.network.whole())
        self.inputs = InputFeatures(encoder)
        self.target = make(encoder, settings.embedding_size, 1.0, generator).requires_grad_(False)
        self.predictor = make(encoder, settings.embedding_size, 1.0, generator)

    def observe(self, batch: TransitionBatch) -> None:
        self.inputs.observe(batch.next_obs)

    def errors(self, batch: TransitionBatch) -> Tensor:
        features = self.inputs(batch.next_obs)
        error: Tensor = self.predictor(features) - self.target(features)
        return error.square().mean(-1)

    def loss(self, batch: TransitionBatch) -> Tensor:
        return self.errors(batch).mean()


class RandomNetworkDistillation(NoveltySignal):
    """Rewards observations that the agents have seldom seen."""

    name = "rnd"

    @staticmethod
    def make_model(settings: RndSettings, header: LaneHeader, generator: torch.Generator) -> NoveltyModel:
        return RandomNetworkModel(settings, header, generator)
