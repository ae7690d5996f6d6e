"""What `relayrl bench teams` and `relayrl bench signals` compare: the same work, but for the algorithm or the signal."""

import pytest

from relayrl.bench.workloads import poca_rows, signal_rows


def test_poca_and_mappo_do_the_same_work():
    poca, mappo = (poca_rows.team_settings(algo, 8).model_dump() for algo in ("poca", "mappo"))
    assert [poca.pop("algo"), mappo.pop("algo")] == ["poca", "mappo"]
    for key in ("train_pi_iters", "train_vf_iters", "num_minibatches"):
        assert poca["params"].pop(key) == mappo["params"].pop(key)
    for settings in (poca, mappo):
        settings.pop("params")
    assert poca == mappo


@pytest.mark.slow
def test_rows_of_signals_run(monkeypatch):
    for name, number in (("NUM_ENVS", 4), ("NUM_ROLLOUTS", 1), ("REPETITIONS", 1)):
        monkeypatch.setattr(signal_rows, name, number)
    rows = signal_rows.signal_rows()
    assert [row.name.split()[2].rstrip(",") for row in rows] == ["rnd", "curiosity", "gail"]
    assert all(row.figure > 0 and row.passed for row in rows)
