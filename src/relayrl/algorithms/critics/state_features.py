"""What critics that learn from replay see of the global state: its encoding, normalised like observations where asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.critics.critic_sight import StateOffer
from relayrl.data.columns import Rollout
from relayrl.data.trees import Array, map_tree
from relayrl.models.compute_device import moved, moved_tree
from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer


class StateFeatures(nn.Module):
    """Encodes states; its buffers are the running moments."""

    def __init__(self, offer: StateOffer, *, normalizes: bool) -> None:
        super().__init__()
        self.space = offer.space
        self.encoder = ObservationEncoder(offer.space)
        adapts = np.concatenate([np.full(e.width, e.is_continuous) for e in self.encoder.encodings])
        self.normalizer = RunningNormalizer(self.encoder.num_features, adapts) if normalizes else None

    @torch.no_grad()
    def features(self, state: Any, device: torch.device) -> Tensor:
        """[M, S] features of states [M, …], on a device."""
        encoded: Tensor = self.encoder(moved_tree(state, device))
        return encoded if self.normalizer is None else self.normalizer(encoded)

    def features_numpy(self, state: Any) -> Array:
        """The same in NumPy."""
        encoded = self.encoder.encode_numpy(state)
        return encoded if self.normalizer is None else self.normalizer.on_host()(encoded)

    def observe(self, rollout: Rollout) -> None:
        """See new states before they are learned from."""
        if self.normalizer is not None and rollout.state is not None:
            flat = map_tree(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout.state)
            self.normalizer.update(moved(self.encoder.encode_numpy(flat), self.normalizer.scale.device))
