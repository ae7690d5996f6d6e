"""Double DQN as an algorithm of one's own, registered and trained on CartPole-v1: `python examples/dqn.py SCRATCH_DIR`."""

import sys
from pathlib import Path

import torch
from gymnasium import spaces
from pydantic import Field

import relayrl
from relayrl.errors import ConfigError
from relayrl.extend import AlgorithmPlugin, OffPolicyAlgorithm, OffPolicyParams, Policy, assembly_of, td_loss, td_target


class DQNParams(OffPolicyParams):
    """Those of replay, and an exploration that becomes less."""

    first_epsilon: float = Field(1.0, ge=0, le=1, description="share of random actions at the start")
    last_epsilon: float = Field(0.04, ge=0, le=1, description="share of random actions after the schedule")
    exploration_share: float = Field(0.2, gt=0, le=1, description="share of the run over which it moves, linearly")


class EpsilonGreedyPolicy(Policy):
    """Its network gives Q-values; the best action has probability 1 − ε, and ε is shared by all that are allowed."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.register_buffer("epsilon", torch.ones(()))  # a buffer is saved, exported, and reaches every actor

    def q(self, features, mask=None):
        """[…, A] values of actions; those that are forbidden are worth nothing."""
        values = self.actor(features)
        return values if mask is None else values.masked_fill(~mask, -1e9)

    def distribution(self, features, mask=None):
        values = self.q(features, mask)
        greedy = torch.nn.functional.one_hot(values.argmax(-1), values.shape[-1])
        allowed = torch.ones_like(values) if mask is None else mask.float()
        epsilon = self.epsilon.clamp(max=0.999)  # below 1, so that the most likely action is the best one
        chances = (1 - epsilon) * greedy + epsilon * allowed / allowed.sum(-1, keepdim=True)
        return chances.log().clamp(min=-1e9)


class DQN(OffPolicyAlgorithm[DQNParams]):
    """Double DQN (van Hasselt et al., 2016): y = r + γ Q′(s′, argmax Q(s′, a)), with soft updates of Q′."""

    policy_class = EpsilonGreedyPolicy
    has_target_policy = True

    @classmethod
    def make_head(cls, space, params):
        if not isinstance(space, spaces.Discrete):
            raise ConfigError(f"DQN needs Discrete actions, not {space}")
        return super().make_head(space, params)

    def explore(self, progress):
        params = self.params
        left = max(0.0, 1.0 - progress / params.exploration_share)
        for group in self.groups.values():
            group.policy.epsilon.fill_(params.last_epsilon + left * (params.first_epsilon - params.last_epsilon))

    def step(self, batch, weight):
        metrics, errors = {}, []
        for name, own in batch.items():
            group = self.groups[name]
            with torch.no_grad():
                best = group.policy.q(own.next_features, own.next_mask).argmax(-1, keepdim=True)
                next_q = group.target_policy.q(own.next_features).gather(-1, best).squeeze(-1)
                target = td_target(own.reward, own.discount, next_q)
            q = (group.policy.q(own.features) * own.action).sum(-1)  # actions are one-hot
            metrics |= self.prefixed(name, group.descend(td_loss(q, target, own.share * weight)))
            group.soft_update()
            errors.append(((q - target).abs() * own.valid).amax(1))
        return metrics, torch.stack(errors).amax(0)


relayrl.register_algorithm("dqn", AlgorithmPlugin(DQNParams, "double DQN, Discrete actions", assembly_of(DQN)))

CARTPOLE = {
    "params.actor_lr": 1e-3,
    "params.batch_size": 64,
    "params.learning_starts": 500,
    "params.update_interval": 8,
    "params.train_iters": 4,
    "params.tau": 0.01,
}


def main(folder: Path) -> None:
    """Train, then act greedily with what was exported."""
    run = relayrl.train("CartPole-v1", algo="dqn", steps=10_000, seed=1, run_dir=folder / "dqn", settings=CARTPOLE)
    print(f"return {run.result.mean_return:.0f}; exported {run.export(folder / 'dqn.onnx')[0].name}")
    assert run.result.mean_return > 100


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/dqn"))
