"""The table of cores: which rows it has, what it compares, and that it shows bits which differ."""

import pytest
from work import WORKS

import cores


@pytest.mark.parametrize("name", cores.ROWS)
def test_every_row_is_a_work(name):
    work, _ = cores.ROWS[name]
    assert work in WORKS


def _figures(losses):
    rates = {1: 50.0, 2: 100.0, 4: 150.0}
    cells = {
        n: {"steps_per_s": rate, "collect_ms": 1.0, "learn_ms": 2.0, "losses": [losses[n]]} for n, rate in rates.items()
    }
    return {"row": "W2k", "threads": cells, "peers": {"Stable-Baselines3": 50.0}}


def test_a_line_has_ratios_to_two_threads_and_to_the_peer():
    line = cores.table_line(_figures({1: "a", 2: "a", 4: "a"}), [1, 2, 4])
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1].startswith("50 (0.50)")
    assert cells[3].startswith("150 (1.50)")
    assert cells[4:] == ["yes", "3.00×", ""]


def test_other_bits_are_told():
    assert "| NO |" in cores.table_line(_figures({1: "a", 2: "a", 4: "b"}), [1, 2, 4])


@pytest.mark.slow
def test_a_row_gives_the_same_losses_with_any_number_of_threads():
    figures = cores.measure("W1 native", [1, 3], 0.1)
    assert [cell["losses"] for cell in figures["threads"].values()] == [["same"], ["same"]]
    assert all(cell["steps_per_s"] > 0 for cell in figures["threads"].values())
