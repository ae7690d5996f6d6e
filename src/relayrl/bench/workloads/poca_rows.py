"""POCA beside MAPPO at equal widths, with 3, 8 and 20 agents: what a critic with attention and a baseline for each agent costs.

For each agent and row, MAPPO's critic multiplies W² numbers besides its first layer, POCA's 5 S² for queries, keys and values
and (S + 1) W (N + 1) / N in the layer behind the attention, besides a first layer of S units; S is `attention_size`.
"""

from __future__ import annotations

from relayrl.bench.rows import Row, interleaved
from relayrl.bench.workloads.ppo_rows import UNIT, steps_per_s
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings

ENVIRONMENT = "native:simple_spread"
NUM_AGENTS = (3, 8, 20)
NUM_ENVS, ROLLOUT_STEPS, NUM_ROLLOUTS, REPETITIONS = 64, 25, 10, 3
TARGET = 0.7


def poca_rows() -> list[Row]:
    """A row for each size of the team."""
    return [_row(num_agents) for num_agents in NUM_AGENTS]


def team_settings(algo: str, num_agents: int) -> RunSettings:
    """The work: 3 passes over 4 minibatches, two layers of 64 units."""
    flags = {
        "algo": algo,
        "environment.num_envs": NUM_ENVS,
        "environment.options": {"N": num_agents},
        "trainer.max_steps": NUM_ROLLOUTS * NUM_ENVS * ROLLOUT_STEPS,
        "trainer.time_horizon": ROLLOUT_STEPS,
        "network.hidden_sizes": (64, 64),
        "evaluation.episodes": 0,
        "params": {"train_pi_iters": 3, "train_vf_iters": 3, "num_minibatches": 4, "target_kl": None},
    }
    return build_run_settings(ENVIRONMENT, None, flags, [])


def _row(num_agents: int) -> Row:
    poca, mappo = (team_settings(algo, num_agents) for algo in ("poca", "mappo"))
    ours, peer = interleaved(lambda: steps_per_s(poca), lambda: steps_per_s(mappo), REPETITIONS)
    return Row(f"POCA {ENVIRONMENT}, {num_agents} agents", ours, UNIT, "MAPPO", peer, ours / peer, TARGET)
