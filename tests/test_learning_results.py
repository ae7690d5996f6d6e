"""The learning table: what it promises can be run, and what it says is what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from relayrl.engines.settings.run_settings import build_run_settings, preset

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_every_row_has_a_preset_of_its_length():
    from learning_rows import ROWS

    for row in ROWS:
        assert preset(row.env, row.algo), f"{row.name} has no preset"
        assert build_run_settings(row.env, None, {"algo": row.algo}, []).trainer.max_steps == row.num_steps


def test_tables_are_what_finished_seeds_say():
    from learning_records import read_records
    from learning_tables import BEGIN, END, sections

    for path, section in sections(read_records()).items():
        assert path.read_text().partition(BEGIN)[2].partition(END)[0].strip() == section.strip(), path.name


def test_a_seed_counts_only_with_the_shipped_preset(tmp_path):
    from learning_records import SeedRecord, append_record, read_records
    from learning_rows import ROWS
    from learning_tables import results_section

    row = ROWS[0]
    seed = SeedRecord(
        row=row.name,
        seed=0,
        num_env_steps=49_152,
        played_in=row.env,
        episodes=100,
        mean_return=123.4,
        std_return=0.0,
        random_return=20.0,
        seconds=60.0,
        curve=((40_000, 100.0),),
        preset=preset(row.env, row.algo),
    )
    append_record(seed, tmp_path / "current")
    assert read_records(tmp_path / "current") == [seed]
    assert "**no** (1 of 5 seeds)" in results_section([seed])
    append_record(replace(seed, preset={**seed.preset, "network": {}}), tmp_path / "changed")
    assert read_records(tmp_path / "changed") == []
