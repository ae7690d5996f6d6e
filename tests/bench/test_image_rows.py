"""What `relayrl bench images` measures of replay, and that its work is what it says."""

import pytest

from relayrl.bench.workloads import image_rows


def test_a_replayed_stack_takes_an_eighth_of_stable_baselines3s_memory(monkeypatch):
    monkeypatch.setattr(image_rows, "REPLAYED", 2_000)
    row = image_rows.replay_row()
    assert row.against_figure == pytest.approx(2 * 84 * 84 * 4, rel=0.01)
    assert row.ratio > 7
    assert row.passed


def test_ppos_work_is_w1s_with_natures_encoder():
    settings = image_rows.ppo_settings(image_rows.Film, 2)
    assert settings.env == "relayrl.bench.workloads.image_rows:Film"
    assert (settings.threads, settings.environment.num_envs, settings.trainer.time_horizon) == (2, 8, 128)
    assert (settings.network.hidden_sizes, settings.network.encoder.value, settings.network.encoder_size) == (
        (),
        "nature_cnn",
        512,
    )
    assert settings.params.num_minibatches == 4


def test_environments_in_workers_are_stepped_by_two_processes_and_do_the_same_work():
    settings = image_rows.ppo_settings(image_rows.car_racing, 1, workers=2)
    assert (settings.environment.workers, settings.environment.num_envs) == (2, 8)
    here = image_rows.ppo_settings(image_rows.car_racing, 1)
    assert settings.model_copy(update={"environment": here.environment}) == here
