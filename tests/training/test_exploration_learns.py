"""A chain of rooms with one reward at its end: PPO alone never finds it; with rnd it learns the way."""

import pytest

import relayrl

SETTINGS = {
    "environment.options": {"num_rooms": 8, "room_size": 6, "max_episode_steps": 112},
    "evaluation.episodes": 20,
}
RND = {"rnd": {"strength": 0.5, "options": {"learning_rate": 1e-3}}}


@pytest.mark.parametrize(("signals", "least", "most"), [({}, 0.0, 0.05), (RND, 0.8, 1.0)], ids=["alone", "rnd"])
def test_ppo_solves_rooms_only_with_a_signal(signals, least, most, tmp_path):
    run = relayrl.train(
        "native:rooms",
        steps=130_000,
        num_envs=16,
        seed=1,
        run_dir=tmp_path / "run",
        settings=SETTINGS | {"reward_signals": signals},
        progress=False,
    )
    assert least <= run.history["episode/return_mean"][-1] <= most
