"""What many agents cost a central critic: memory for what they see, and not for that once more for each of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from relayrl.engines.assembly import assemble
from relayrl.engines.run_settings import RunSettings
from relayrl.envs.registry import make_vector
from relayrl.runtime.collector import Collector

NUM_AGENTS = 32


@pytest.mark.parametrize("normalizes", [False, True])
def test_an_update_takes_the_memory_of_what_agents_see(normalizes: bool) -> None:
    """Laid out for every agent, what the critic sees would be 32 times the observations."""
    settings = RunSettings.model_validate(
        {
            "env": "native:simple_spread",
            "algo": "mappo",
            "params": {"train_pi_iters": 1, "train_vf_iters": 1},
            "environment": {"num_envs": 4, "options": {"N": NUM_AGENTS}},
            "network": {"hidden_sizes": [16], "normalize_observations": normalizes},
        }
    )
    worlds = make_vector(settings.env, settings.environment)
    parts = assemble(settings, worlds)
    collector = Collector(
        worlds, parts.actors, num_steps=25, seed=1, rng=np.random.default_rng(0), records_states=False
    )
    rollouts = collector.collect(0)
    parts.trainer.receive(rollouts)
    tracemalloc.start()
    try:
        parts.trainer.advance()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * rollouts["agent"].obs.nbytes
