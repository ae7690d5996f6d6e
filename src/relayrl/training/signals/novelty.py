"""Novelty as a reward: the error of a network that learns from what agents have seen, and so errs where they have not been.

What `rnd` and `curiosity` share: a model per policy group, rewards divided by the running standard deviation of their own
discounted returns (Burda et al., 2018), and gradient steps on every rollout after it was rewarded. Which error it is, is the
`NoveltyModel`'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.losses import require_finite
from relayrl.algorithms.off_policy import descend
from relayrl.algorithms.optimizer import USUAL_EPSILON, FlatAdam
from relayrl.algorithms.updates.batch_columns import Number, as_number, as_numbers
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.trees import Array, Tree
from relayrl.models.compute_device import moved
from relayrl.models.networks.observation_encoder import ObservationEncoder, RunningNormalizer
from relayrl.models.networks.one_thread import one_thread
from relayrl.training.signals.reward_signals import RewardSignal
from relayrl.training.signals.signal_registry import SignalGroup
from relayrl.training.signals.signal_settings import LearningSettings
from relayrl.training.signals.transitions import TransitionBatch, Transitions

OBSERVATION_CLIP = 5.0
REWARD_CLIP = 5.0
"""Of normalised numbers. The second matters for the first rows of a run, whose deviation is of nothing yet."""
CHUNK_ROWS = 1024
"""Rows that are encoded at once: features of images take memory."""


class NoveltyModel(nn.Module, ABC):
    """Networks of one policy group, with the running moments of their inputs."""

    @abstractmethod
    def observe(self, batch: TransitionBatch) -> None:
        """Take a batch into the running moments."""

    @abstractmethod
    def errors(self, batch: TransitionBatch) -> Tensor:
        """[M] how wrong the networks are about each row."""

    @abstractmethod
    def loss(self, batch: TransitionBatch) -> Tensor:
        """What a gradient step makes smaller."""


class InputFeatures(nn.Module):
    """Observations or actions of a space as normalised, clipped features."""

    def __init__(self, encoder: ObservationEncoder, adapts: Array | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalizer = RunningNormalizer(encoder.num_features, adapts, OBSERVATION_CLIP)

    def encode(self, rows: Tree) -> Tensor:
        """[M, F] as they are."""
        return moved(self.encoder.encode_numpy(rows), self.normalizer.scale.device)

    def forward(self, rows: Tree) -> Tensor:
        features: Tensor = self.normalizer(self.encode(rows))
        return features

    def observe(self, rows: Tree) -> None:
        """Take rows into the running moments."""
        self.normalizer.update(self.encode(rows))


class ReturnScale:
    """Divides rewards by the standard deviation of their discounted returns, which go on over ends of episodes.

    R_t = γ R_{t−1} + i_t,  i_t ← i_t / std(R)
    """

    def __init__(self, num_lanes: int, gamma: float) -> None:
        self._gamma = gamma
        self._returns = np.zeros(num_lanes)
        self._moments = RunningNormalizer(1)

    def __call__(self, reward: Array, valid: Array) -> Array:
        """[T, L] the scaled rewards, with the rows themselves in the deviation."""
        running = np.empty(reward.shape)
        for t in range(len(reward)):
            self._returns = np.where(valid[t], self._gamma * self._returns + reward[t], self._returns)
            running[t] = self._returns
        self._moments.update(torch.from_numpy(running[valid][:, None]))
        return np.asarray(np.minimum(reward * float(self._moments.scale), REWARD_CLIP), np.float32)

    def state_dict(self) -> dict[str, Any]:
        """Returns of the lanes, and the moments of all."""
        return {"returns": torch.from_numpy(self._returns), "moments": self._moments.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`; with another number of lanes, their returns begin afresh."""
        returns = state["returns"].numpy().copy()
        if returns.shape == self._returns.shape:
            self._returns = returns
        self._moments.load_state_dict(state["moments"])


class GroupNovelty:
    """What a policy group finds new."""

    def __init__(self, model: NoveltyModel, settings: LearningSettings, group: SignalGroup) -> None:
        self._model, self._settings = model, settings
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = FlatAdam(self._parameters, settings.learning_rate, None, USUAL_EPSILON)
        self._scale = ReturnScale(group.header.num_lanes, group.gamma)
        self._rng = np.random.default_rng(group.seed)

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Array:
        """[T, L] scaled errors. The moments take the rollout in first: there is no rollout without any."""
        transitions = Transitions(rollout)
        for batch in transitions.batches(CHUNK_ROWS):
            self._model.observe(batch)
        errors = np.zeros(rollout.reward.shape)
        for batch in transitions.batches(CHUNK_ROWS):
            errors.reshape(-1)[batch.row] = self._model.errors(batch).cpu().numpy()
        return self._scale(errors, np.asarray(rollout.valid, bool))

    def learn(self, rollout: Rollout, name: str) -> list[float]:
        """Gradient steps on minibatches of the valid rows; gives their losses."""
        transitions, rate = Transitions(rollout), f"reward_signals.{name}.options.learning_rate"
        losses: list[Number] = []
        for _ in range(self._settings.num_epochs):
            order = self._rng.permutation(len(transitions.row))
            for batch in transitions.batches(self._settings.batch_size, order):
                loss = self._model.loss(batch)
                descend(loss, self._optimizer, self._parameters, f"{name} network", rate)
                losses.append(as_number(loss.detach()))
        found = list(as_numbers({str(i): loss for i, loss in enumerate(losses)}).values())
        for number in found:  # those of a GPU are here only now
            require_finite(number, f"{name} network", rate)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Networks, moments, optimiser and generator."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scale": self._scale.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._scale.load_state_dict(state["scale"])
        self._rng.bit_generator.state = state["rng"]


class NoveltySignal(RewardSignal):
    """A model for every policy group."""

    name: str
    """As settings and metrics have it."""

    def __init__(self, settings: Any, groups: Sequence[SignalGroup]) -> None:
        with one_thread():  # orthogonal matrices are rounded as threads cut them
            self._groups = {
                group.header.group: GroupNovelty(
                    self.make_model(settings, group.header, torch.Generator().manual_seed(group.seed)).to(group.device),
                    settings,
                    group,
                )
                for group in groups
            }

    @staticmethod
    @abstractmethod
    def make_model(settings: Any, header: LaneHeader, generator: torch.Generator) -> NoveltyModel:
        """The networks of one group."""

    def evaluate(self, rollout: Rollout) -> Array:
        return self._groups[rollout.header.group].evaluate(rollout)

    def learn(self, rollout: Rollout) -> dict[str, float]:
        losses = self._groups[rollout.header.group].learn(rollout, self.name)
        return {"loss": sum(losses) / len(losses)} if losses else {}

    def state_dict(self) -> dict[str, Any]:
        return {name: group.state_dict() for name, group in self._groups.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, group in self._groups.items():
            group.load_state_dict(state[name])
