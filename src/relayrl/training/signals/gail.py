"""`gail`: generative adversarial imitation (Ho & Ermon, 2016, arXiv:1606.03476).

A discriminator learns to tell demonstrated steps x = (s) or (s, a) from the agents' own, and what it takes for demonstrated is
rewarded. With D = σ(d(x)):

    i_t = −log(1 − D(x_t))
    L   = −E_demo[log D] − E_own[log(1 − D)] + λ E[(‖∇d(x̂)‖ − 1)²],   x̂ = ε x_demo + (1 − ε) x_own

The penalty is that of WGAN-GP (Gulrajani et al., 2017). With a variational bottleneck (Peng et al., 2019, arXiv:1810.00821), d
sees z ~ N(μ(x), σ²) only, and the information that z may hold of x is bounded:

    L += β (KL − I_c),   KL = ½ E[Σ μ² + σ² − 1 − log σ²],   β ← max(0, β + α (KL − I_c))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relayrl.algorithms.imitation.demonstrated_rows import DemonstratedRows
from relayrl.algorithms.losses import require_finite
from relayrl.algorithms.off_policy import descend
from relayrl.algorithms.optimizer import USUAL_EPSILON, FlatAdam
from relayrl.data.columns import LaneHeader, Rollout
from relayrl.data.trees import Array, Tree
from relayrl.models.compute_device import device_of, moved
from relayrl.models.heads.head_registry import likelihood_head
from relayrl.models.networks.input_layout import SideBySide
from relayrl.models.networks.network_factory import BuiltInNetworks
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.models.networks.one_thread import one_thread
from relayrl.training.imitation.demonstrations import read_demonstrations
from relayrl.training.signals.novelty import CHUNK_ROWS, InputFeatures
from relayrl.training.signals.reward_signals import RewardSignal
from relayrl.training.signals.signal_registry import SignalGroup
from relayrl.training.signals.signal_settings import GailSettings
from relayrl.training.signals.transitions import Transitions

MAX_REWARD = 16.0
"""−log(1 − D) of a discriminator that is sure."""
Metrics = dict[str, float]


class Discriminator(nn.Module):
    """d(x) of normalised features of observations, and of actions where they count."""

    def __init__(self, settings: GailSettings, header: LaneHeader, generator: torch.Generator) -> None:
        super().__init__()
        self._head = likelihood_head(header.action_space)
        observations = ObservationEncoder(header.observation_space)
        self.inputs = InputFeatures(observations)
        self.actions: InputFeatures | None = None
        layout: Any = observations
        if settings.use_actions:
            actions = ObservationEncoder(header.action_space)
            is_real = np.concatenate([np.full(each.width, each.is_continuous) for each in actions.encodings])
            self.actions = InputFeatures(actions, is_real)
            layout = SideBySide([observations, actions])
        make, size = BuiltInNetworks(settings.network.whole()), settings.bottleneck_size
        self.network = make(layout, size if settings.use_vail else 1, 1.0, generator)
        self.log_std: nn.Parameter | None = None
        if settings.use_vail:
            self.log_std = nn.Parameter(torch.zeros(size))
            self.estimate = nn.Linear(size, 1)
            with torch.no_grad():
                self.estimate.weight.normal_(0.0, size**-0.5, generator=generator)
                self.estimate.bias.zero_()

    def encode(self, obs: Tree, action: Any) -> Tensor:
        """[M, F] as they are; actions as the environment takes them, so that their clipping tells nothing."""
        features = self.inputs.encode(obs)
        if self.actions is None:
            return features
        return torch.cat([features, self.actions.encode(self._head.to_environment(action))], -1)

    def observe(self, features: Tensor) -> None:
        """Take rows that `encode` gave into the running moments."""
        width = self.inputs.encoder.num_features
        self.inputs.normalizer.update(features[:, :width])
        if self.actions is not None:
            self.actions.normalizer.update(features[:, width:])

    def normalized(self, features: Tensor) -> Tensor:
        """[M, F] what the networks see of rows that `encode` gave."""
        width = self.inputs.encoder.num_features
        seen: Tensor = self.inputs.normalizer(features[:, :width])
        return seen if self.actions is None else torch.cat([seen, self.actions.normalizer(features[:, width:])], -1)

    def forward(self, seen: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[M] d(x) and, of a bottleneck, [M] the KL divergence; without `noise`, of the mean code."""
        code: Tensor = self.network(seen)
        if self.log_std is None:
            return code.squeeze(-1), code.new_zeros(len(code))
        kl = 0.5 * (code.square() + (2.0 * self.log_std).exp() - 1.0 - 2.0 * self.log_std).sum(-1)
        sampled = code if noise is None else code + self.log_std.exp() * noise
        return self.estimate(sampled).squeeze(-1), kl


class GroupImitation:
    """The discriminator of one policy group, and what it was shown."""

    def __init__(self, settings: GailSettings, group: SignalGroup, demonstrated: DemonstratedRows) -> None:
        self._settings, self._demonstrated = settings, demonstrated
        generator = torch.Generator().manual_seed(group.seed)
        self.model = Discriminator(settings, group.header, generator).to(group.device)
        self._parameters = list(self.model.parameters())
        self._optimizer = FlatAdam(self._parameters, settings.learning_rate, None, USUAL_EPSILON)
        self._rng = np.random.default_rng(group.seed)
        self._beta = 0.0
        self._recent = torch.zeros(0, self._shown(slice(0, 1)).shape[1])
        for begin in range(0, demonstrated.num_rows, CHUNK_ROWS):
            self.model.observe(self._shown(slice(begin, begin + CHUNK_ROWS)))

    def _shown(self, where: Array | slice) -> Tensor:
        """[M, F] features of demonstrated rows."""
        rows = self._demonstrated.rows(where)
        return self.model.encode(rows.obs, rows.action)

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> Array:
        """[T, L] −log(1 − D), of the rows on which agents acted."""
        reward = np.zeros(rollout.reward.shape, np.float32)
        for batch in Transitions(rollout).batches(CHUNK_ROWS):
            features = self.model.encode(batch.obs, batch.action)
            self.model.observe(features)
            estimate, _ = self.model(self.model.normalized(features))
            reward.reshape(-1)[batch.row] = nn.functional.softplus(estimate).clamp(max=MAX_REWARD).cpu().numpy()
        return reward

    def learn(self, rollout: Rollout) -> Metrics:
        """Steps on minibatches of the agents' rows, each beside as many demonstrated ones; means of metrics.

        A rollout that is smaller than a minibatch is filled up with the latest rows before it.
        """
        transitions, size = Transitions(rollout), self._settings.batch_size
        if not len(transitions.row):
            return {}
        found: list[Metrics] = []
        if len(transitions.row) < size:
            (batch,) = transitions.batches(size)
            rows = torch.cat([self._recent, self.model.encode(batch.obs, batch.action).cpu()])
            self._recent = rows[-size:].clone()
            found += [self._step(self._recent) for _ in range(self._settings.num_epochs)]
        else:
            for _ in range(self._settings.num_epochs):
                order = self._rng.permutation(len(transitions.row))
                for batch in transitions.batches(size, order):
                    found.append(self._step(self.model.encode(batch.obs, batch.action)))
        return {name: sum(each[name] for each in found) / len(found) for name in found[0]}

    def _step(self, own: Tensor) -> Metrics:
        """One gradient step on features of the agents' rows."""
        settings, rng, num_rows = self._settings, self._rng, len(own)
        shown = self._shown(rng.integers(self._demonstrated.num_rows, size=num_rows))
        both = self.model.normalized(torch.cat([shown, own.to(shown.device)]))
        estimate, kl = self.model(both, self._noise(2 * num_rows))
        demo, agents = estimate[:num_rows], estimate[num_rows:]
        loss = nn.functional.softplus(-demo).mean() + nn.functional.softplus(agents).mean()
        penalty = self._gradient_penalty(both[:num_rows], both[num_rows:])
        total = loss + settings.gradient_penalty * penalty
        metrics = {
            "loss": float(loss.detach()),
            "gradient_penalty": float(penalty.detach()),
            "demo_estimate": float(demo.detach().sigmoid().mean()),
            "policy_estimate": float(agents.detach().sigmoid().mean()),
        }
        rate = "reward_signals.gail.options.learning_rate"
        require_finite(metrics["loss"] + metrics["gradient_penalty"], "gail network", rate)
        information = kl.mean()
        if settings.use_vail:
            total = total + self._beta * (information - settings.mutual_information)
            metrics |= {"information": float(information.detach()), "beta": self._beta}
        descend(total, self._optimizer, self._parameters, "gail network", rate)
        if settings.use_vail:
            excess = metrics["information"] - settings.mutual_information
            self._beta = max(0.0, self._beta + settings.beta_learning_rate * excess)
        return metrics

    def _noise(self, num_rows: int) -> Tensor | None:
        if not self._settings.use_vail:
            return None
        drawn = self._rng.standard_normal((num_rows, self._settings.bottleneck_size), np.float32)
        return moved(drawn, device_of(self.model))

    def _gradient_penalty(self, shown: Tensor, own: Tensor) -> Tensor:
        """E[(‖∇d(x̂)‖ − 1)²] at points between the rows."""
        if self._settings.gradient_penalty == 0.0:
            return own.new_zeros(())
        share = moved(self._rng.random((len(own), 1), np.float32), own.device)
        between = (share * shown + (1.0 - share) * own).requires_grad_()
        estimate, _ = self.model(between)
        (gradient,) = torch.autograd.grad(estimate.sum(), between, create_graph=True)
        # The square root of 0 has no derivative.
        return ((gradient.square().sum(-1) + 1e-12).sqrt() - 1.0).square().mean()

    def state_dict(self) -> dict[str, Any]:
        """Networks, moments, optimiser, generator, β and the latest rows; not the demonstrations."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "rng": self._rng.bit_generator.state,
            "beta": self._beta,
            "recent": self._recent,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._rng.bit_generator.state = state["rng"]
        self._beta, self._recent = state["beta"], state["recent"].clone()


class Gail(RewardSignal):
    """Rewards steps that look demonstrated. A group without demonstrations is rewarded nothing."""

    def __init__(self, settings: GailSettings, groups: Sequence[SignalGroup]) -> None:
        headers = {group.header.group: group.header for group in groups}
        shown = read_demonstrations(settings.demo_path, headers)
        with one_thread():  # orthogonal matrices are rounded as threads cut them
            self._groups = {
                name: GroupImitation(settings, group, DemonstratedRows.of(shown[name]))
                for name, group in zip(headers, groups, strict=True)
                if shown[name]
            }

    def evaluate(self, rollout: Rollout) -> Array:
        group = self._groups.get(rollout.header.group)
        return np.zeros(rollout.reward.shape, np.float32) if group is None else group.evaluate(rollout)

    def learn(self, rollout: Rollout) -> Metrics:
        group = self._groups.get(rollout.header.group)
        return {} if group is None else group.learn(rollout)

    def state_dict(self) -> dict[str, Any]:
        return {name: group.state_dict() for name, group in self._groups.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, group in self._groups.items():
            group.load_state_dict(state[name])
