"""When the parts of an update happen in a training server: actors get a policy as soon as it has learned, not its critic."""

from __future__ import annotations

import math
from types import SimpleNamespace
from uuid import uuid4

import pytest

from relayrl.bench.servers.trajectory_producer import ACTION_SPACE, OBSERVATION_SPACE, numbered_trajectory
from relayrl.engines.local.phase_clock import PhaseClock
from relayrl.servers.training.remote_experience import Intake, LearningFromActors, Received
from relayrl.servers.training.training_metrics import TrainingMetrics
from relayrl.training.trainers.policy_groups import PolicyGroup

NUM_STEPS = 8


class _Trainer:
    """Writes down when an update begins and when it is finished."""

    uses_logp = True

    def __init__(self, events):
        self.policy_version, self.num_env_steps, self._events = 0, 0, events

    def receive_trajectories(self, trajectories, groups):
        self.num_env_steps += sum(map(len, trajectories))

    def begin(self):
        self.policy_version += 1
        version = self.policy_version
        self._events.append(f"begin {version}")

        def finish():
            self._events.append(f"finish {version}")
            return {"loss": float(version)}

        return finish


@pytest.fixture
def run():
    events, rows = [], []
    trainer, intake = _Trainer(events), Intake(NUM_STEPS, 1 << 30)
    parts = SimpleNamespace(trainer=trainer, collector=None, env=SimpleNamespace(num_envs=1))
    pace = LearningFromActors(
        parts,
        {"agent": PolicyGroup("agent", OBSERVATION_SPACE, ACTION_SPACE, False, ("agent",))},
        SimpleNamespace(add=rows.append),
        PhaseClock(),
        intake,
        TrainingMetrics(),
        max_policy_lag=None,
        publish=lambda: events.append(f"publish {trainer.policy_version}"),
        on_room=lambda: None,
        save_interval_s=math.inf,
        num_learned=0,
        learned_version=0,
    )
    return SimpleNamespace(pace=pace, intake=intake, events=events, rows=rows)


def _send_an_update(run):
    run.intake.put([Received.of([numbered_trajectory(uuid4(), 0, NUM_STEPS)], is_single_agent=True)])
    run.pace.advance(NUM_STEPS)


def test_a_critic_goes_on_learning_until_the_next_update(run):
    _send_an_update(run)
    assert run.events == ["begin 1", "publish 1"]
    _send_an_update(run)
    assert run.events == ["begin 1", "publish 1", "finish 1", "begin 2", "publish 2"]
    assert run.rows == [{"loss": 1.0}]


def test_what_comes_after_an_update_waits_for_its_end(run):
    _send_an_update(run)
    run.pace.after_update(lambda: run.events.append("row"))
    assert run.events[-1] == "publish 1"
    run.pace.settle()
    assert run.events[-2:] == ["finish 1", "row"]


def test_an_update_is_finished_while_no_actor_sends(run):
    _send_an_update(run)
    run.pace.advance(NUM_STEPS)
    assert run.events == ["begin 1", "publish 1", "finish 1"]
    assert run.rows == [{"loss": 1.0}]
