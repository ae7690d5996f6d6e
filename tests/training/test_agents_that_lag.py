"""An agent that acts with an older model, a trainer that corrects for it or drops it: from public names alone."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from relayrl import (
    AgentBuilder,
    APPOParams,
    IMPALAParams,
    NetworkSettings,
    PPOParams,
    RelayRLTrainer,
    TrainerArgs,
    open_source,
)

NUM_EPOCHS = 6
PARAMS = {
    "impala": IMPALAParams(traj_per_epoch=4),
    "appo": APPOParams(traj_per_epoch=4),
    "ppo": PPOParams(traj_per_epoch=4, train_pi_iters=2, train_vf_iters=2, max_policy_lag=1),
}


def played(trainer: Any, folder: Path) -> list[dict[str, float]]:
    """Rows of an agent's epochs, whose model is replaced once, in the middle."""
    env = gymnasium.make("CartPole-v1")
    url, num_read, rows = f"arrow:{folder / 'experience'}", 0, []
    builder = AgentBuilder().default_model(trainer.acquire_model("onnx").path).sink(url).seed(0)
    with builder.build() as agent:
        ids = agent.get_actor_ids()
        for epoch in range(NUM_EPOCHS):
            if epoch == NUM_EPOCHS // 2:
                agent.update_model(trainer.acquire_model("onnx").path)
            for episode in range(4):
                obs, reward, ended = env.reset(seed=4 * epoch + episode)[0], 0.0, False
                while not ended:
                    record = agent.request_action(ids, obs[None], reward=reward)
                    obs, reward, terminated, truncated, _ = env.step(int(record.action[0]))
                    ended = terminated or truncated
                agent.flag_last_action(
                    ids, reward=reward, terminated=terminated, truncated=truncated, final_obs=obs[None]
                )
            assert agent.flush()
            with open_source(url) as source:
                received = list(source)
            for trajectory in received[num_read:]:
                assert trajectory.logp is not None
                trainer.receive_trajectory(trajectory)
            num_read = len(received)
            trainer.train_model()
            rows.append(trainer.log_epoch())
    env.close()
    return rows


@pytest.mark.parametrize("algo", PARAMS)
def test_an_agents_lag_is_corrected_or_dropped(algo, tmp_path):
    args = TrainerArgs("CartPole-v1", tmp_path, obs_dim=4, act_dim=2, network=NetworkSettings(hidden_sizes=(8,)))
    trainer = getattr(RelayRLTrainer, algo)(args, PARAMS[algo])
    rows = played(trainer, tmp_path)
    assert [row["policy/lag_versions"] for row in rows] == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    if algo == "ppo":
        # A model is learned from twice, and is too old then.
        assert [row["data/skipped_updates"] for row in rows] == [0, 0, 1, 0, 0, 1]
        assert rows[2]["data/dropped_stale_steps"] >= 4
        assert trainer.policy_version == 4
    else:
        ratios = [row["policy/importance_ratio"] for row in rows]
        assert ratios[0] == pytest.approx(1.0, abs=1e-4) == ratios[3]
        assert abs(ratios[2] - 1.0) > 1e-4
        assert trainer.policy_version == NUM_EPOCHS
