"""`--from` puts agents that come late beside those that acted at the same time, and warns where a record cannot say when."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relayrl.engines.local.run_parts import RunParts, build_parts
from relayrl.engines.settings.run_settings import build_run_settings
from relayrl.models.policy import parameter_hash
from relayrl.runtime.collector import Collector
from relayrl.sinks.contract import open_sink, open_source

DYING = "relayrl.testing.multi_agent_environments:DyingAgents"
FLAGS = {
    "algo": "masac",
    "environment.num_envs": 1,
    "trainer.max_steps": 64,
    "network.hidden_sizes": [8],
    "params.batch_size": 8,
    "params.learning_starts": 1,
}


def made(**more: object) -> RunParts:
    return build_parts(build_run_settings(DYING, None, FLAGS | more, []))


def recorded(url: str, *, knows_steps: bool = True) -> RunParts:
    """A run that has collected two episodes of six steps, and their record."""
    parts = made()
    actors = {name: parts.trainer.actor_for(policy) for name, policy in parts.policies.items()}
    collector = Collector(
        parts.env, actors, num_steps=12, seed=0, rng=np.random.default_rng(0), records_states=parts.trainer.needs_states
    )
    rollouts = collector.collect(0)
    with open_sink(url) as sink:
        for rollout in rollouts.values():
            block = rollout.trajectories()
            sink.write(block if knows_steps else [replace(t, step=None, end_step=None) for t in block])
    parts.trainer.receive(rollouts)
    return parts


def replay_of(parts: RunParts) -> dict[str, np.ndarray]:
    return parts.trainer.state_dict()["replay"]["arrays"]


def test_masac_learns_from_agents_as_they_were_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"arrow:{tmp_path}"
    with caplog.at_level(logging.WARNING):
        collected = recorded(url)
        offline = made(learn_from=url)
    assert "did not act equally often" not in caplog.text
    from_rollouts, from_records = replay_of(collected), replay_of(offline)
    assert from_records["wolf_0/valid"][:6, 0].tolist() == [False, False, False, True, True, True]
    assert from_records["sheep/valid"][:6].tolist() == [[True, True]] * 2 + [[False, True]] * 3 + [[False, False]]
    assert set(from_records) == set(from_rollouts)
    for name, array in from_rollouts.items():
        valid = from_rollouts.get(f"{name.split('/')[0]}/valid")  # on other rows of a group, columns mean nothing
        shown = slice(None) if valid is None else valid
        np.testing.assert_array_equal(from_records[name][shown], array[shown], err_msg=name)


def test_a_record_without_steps_is_learned_from_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"arrow:{tmp_path}"
    recorded(url, knows_steps=False)
    with open_source(url) as source:
        assert not any(t.knows_steps for t in source)
    with caplog.at_level(logging.WARNING):
        offline = made(learn_from=url)
    assert caplog.text.count("did not act equally often") == 1
    assert all(parameter_hash(policy) for policy in offline.policies.values())
    assert replay_of(offline)["wolf_0/valid"][0, 0]  # beside step 0, which it was not at
