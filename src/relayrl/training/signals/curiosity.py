"""`curiosity`: the intrinsic curiosity module (Pathak, Agrawal, Efros, Darrell, 2017, arXiv:1705.05363).

An encoder φ, an inverse model that finds the action between two observations, and a forward model of what follows:

    i_t = ½ ‖φ̂(φ(s_t), a_t) − φ(s_{t+1})‖²
    L   = (1 − β) L_inverse(â(φ(s_t), φ(s_{t+1})), a_t) + β mean(i_t)

The inverse model keeps in φ what the agent's actions have to do with, so that noise which nobody can predict is not new
forever. β is `forward_share`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.data.columns import LaneHeader
from relayrl.models.networks.input_layout import SideBySide, plain_numbers
from relayrl.models.networks.network_factory import BuiltInNetworks
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.training.signals.novelty import InputFeatures, NoveltyModel, NoveltySignal
from relayrl.training.signals.signal_settings import CuriositySettings
from relayrl.training.signals.transitions import TransitionBatch


class CuriosityModel(NoveltyModel):
    """Encoder, inverse and forward model. Actions are one-hot numbers, or normalised ones where they are real."""

    def __init__(self, settings: CuriositySettings, header: LaneHeader, generator: torch.Generator) -> None:
        super().__init__()
        self._forward_share = settings.forward_share
        encoder, actions = ObservationEncoder(header.observation_space), ObservationEncoder(header.action_space)
        is_real = np.concatenate([np.full(each.width, each.is_continuous) for each in actions.encodings])
        self.inputs, self.actions = InputFeatures(encoder), InputFeatures(actions, is_real)
        make, width = BuiltInNetworks(settings.network.whole()), settings.embedding_size
        features, action = plain_numbers(width), plain_numbers(actions.num_features)
        self.encoder = make(encoder, width, 1.0, generator)
        self.inverse = make(SideBySide([features, features]), actions.num_features, 1.0, generator)
        self.predictor = make(SideBySide([features, action]), width, 1.0, generator)

    def observe(self, batch: TransitionBatch) -> None:
        self.inputs.observe(batch.next_obs)
        self.actions.observe(batch.action)

    def errors(self, batch: TransitionBatch) -> Tensor:
        return self._prediction_errors(*self._embedded(batch), self.actions(batch.action))

    def loss(self, batch: TransitionBatch) -> Tensor:
        now, following = self._embedded(batch)
        action = self.actions(batch.action)
        inverse = self._inverse_loss(self.inverse(torch.cat([now, following], -1)), action)
        forward = self._prediction_errors(now, following, action).mean()
        return (1.0 - self._forward_share) * inverse + self._forward_share * forward

    def _embedded(self, batch: TransitionBatch) -> tuple[Tensor, Tensor]:
        return self.encoder(self.inputs(batch.obs)), self.encoder(self.inputs(batch.next_obs))

    def _prediction_errors(self, now: Tensor, following: Tensor, action: Tensor) -> Tensor:
        """[M] ½ ‖φ̂(φ(s_t), a_t) − φ(s_{t+1})‖²."""
        predicted: Tensor = self.predictor(torch.cat([now, action], -1))
        return 0.5 * (predicted - following).square().sum(-1)

    def _inverse_loss(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Cross-entropy of choices and bits, squared error of real numbers, summed over the parts of an action."""
        parts, start = [], 0
        for encoding in self.actions.encoder.encodings:
            widths = [encoding.width] if encoding.categories is None else [int(n) for n in encoding.categories]
            for width in widths:
                given, true = outputs[:, start : start + width], action[:, start : start + width]
                start += width
                if encoding.categories is not None:
                    parts.append(nn.functional.cross_entropy(given, true))
                elif encoding.is_continuous:
                    parts.append(nn.functional.mse_loss(given, true))
                else:
                    parts.append(nn.functional.binary_cross_entropy_with_logits(given, true))
        return torch.stack(parts).sum()


class Curiosity(NoveltySignal):
    """Rewards what the agents could not predict of the consequences of their actions."""

    name = "curiosity"

    @staticmethod
    def make_model(settings: CuriositySettings, header: LaneHeader, generator: torch.Generator) -> NoveltyModel:
        return CuriosityModel(settings, header, generator)
