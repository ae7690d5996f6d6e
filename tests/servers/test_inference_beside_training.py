"""An inference server that follows a training server, and agents that act by one and learn for the other."""

import contextlib
import threading

import numpy as np
import pytest

from relayrl import AgentBuilder
from relayrl.engines.runs.run_record import RunInterrupted
from relayrl.servers.inference.inference_server import InferenceServer
from relayrl.servers.training.training_server import TrainingServer
from waiting import wait_until

SETTINGS = {
    "trainer.time_horizon": 16,
    "environment.num_envs": 2,
    "params.train_pi_iters": 1,
    "params.train_vf_iters": 1,
}
SETTINGS |= {"trainer.tensorboard": False, "evaluation.episodes": 1}


def run(training) -> None:
    with contextlib.suppress(RunInterrupted):
        training.run()


@pytest.mark.timeout(240)
def test_actors_act_by_one_server_and_learn_for_the_other(tmp_path):
    training = TrainingServer(
        "CartPole-v1", algo="ppo", bind="tcp://127.0.0.1:0", run_dir=tmp_path / "run", steps=100_000
    )
    with training:
        learning = threading.Thread(target=run, args=(training,), daemon=True)
        learning.start()
        with InferenceServer("tcp://127.0.0.1:0", follow=training.address) as inference:
            wait_until(lambda: inference.deployments)
            builder = AgentBuilder().actor_count(4).inference(inference.address, timeout_s=60.0)
            builder.server(training.address, spool=tmp_path / "spool", timeout_s=60.0)
            with builder.build() as agent:
                ids = agent.get_actor_ids()
                first = set(agent.get_model_version().values())
                obs, steps = np.zeros((4, 4), np.float32), 0

                def play() -> bool:
                    nonlocal steps
                    record = agent.request_action(ids, obs, reward=None if steps % 20 == 0 else 1.0)
                    steps += 1
                    if steps % 20 == 0:
                        agent.flag_last_action(ids, reward=1.0)
                    return set(record.policy_version.tolist()) != first

                wait_until(play)  # what they played was learned from, and they act with what came of it
                assert max(agent.get_model_version().values()) > max(first)
        training.stop()
        learning.join(120)
        assert not learning.is_alive()
