"""What a person sees: a table where it can be redrawn, lines elsewhere, nothing when quiet."""

import io
import math
import re
import sys
import types
from dataclasses import replace

import pytest
from rich.console import Console

from relayrl.engines.process.progress_display import TABLE, Lines, describe, duration_text, progress_display, table_of
from relayrl.engines.runs.run_record import Progress

HALF = Progress(500, 1000, 2.0, math.nan, {"policy/entropy": 0.6931, "time/collect_steps_per_s": 12345.6})
WHOLE = Progress(1000, 1000, 4.0, 12.5, {"evaluation/return_mean": 30.0})


def test_a_line_has_steps_rate_return_and_time_left():
    assert describe(HALF) == "500/1,000 steps (50%)  250 steps/s  return –  2 s left"
    assert describe(WHOLE) == "1,000/1,000 steps (100%)  250 steps/s  return 12.5  0 s left"
    before = replace(HALF, num_env_steps=0)  # a server without actors
    assert describe(before) == "0/1,000 steps (0%)  0 steps/s  return –  waiting for the first steps"


def test_lines_are_rare_but_the_last_one_comes(capsys):
    lines = Lines("ppo on X")
    for progress in (HALF, HALF, HALF, WHOLE):
        lines.update(progress)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_quiet_shows_nothing(capsys):
    with progress_display("X", "ppo", enabled=False) as display:
        display.update(WHOLE)
    assert capsys.readouterr() == ("", "")


def test_elsewhere_than_on_a_terminal_lines_go_to_standard_error(capsys):
    with progress_display("X", "ppo", enabled=True) as display:
        display.update(WHOLE)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "ppo on X  1,000/1,000 steps (100%)  250 steps/s  return 12.5  0 s left\n"


def test_a_terminal_gets_a_table_of_the_newest_statistics():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with progress_display("X", "ppo", enabled=True, console=console) as display:
        display.update(HALF)
        display.update(WHOLE)
    shown = screen.getvalue()
    assert "ppo on X" in shown
    assert re.search(r"entropy +0\.693 +collecting, steps/s +12,346", shown)
    assert re.search(r"evaluation return +30", shown)
    assert "━" in shown


def test_a_notebook_gets_one_cell_with_a_bar(monkeypatch):
    shown = []

    class ZMQInteractiveShell:
        pass

    class Handle:
        def update(self, content, raw):
            shown.append(content)

    display = types.ModuleType("IPython.display")
    display.display = lambda content, raw, display_id: Handle()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress_display("X", "ppo", enabled=True) as bar:
        bar.update(WHOLE)
    assert shown[0]["text/plain"] == "ppo on X  1,000/1,000 steps (100%)  250 steps/s  return 12.5  0 s left"
    assert '<progress value="1000" max="1000"' in shown[0]["text/html"]


def test_times_have_the_units_that_people_use():
    texts = [duration_text(seconds) for seconds in (0.4, 59, 61, 378, 3_600, 7_325, 100_000, 1e6)]
    assert texts == ["0 s", "59 s", "1 min 1 s", "6 min 18 s", "1 h 0 min", "2 h 2 min", "1 d 3 h", "11 d 13 h"]


@pytest.mark.parametrize(("width", "height", "num_lines"), [(40, 8, 7), (40, 40, 14), (80, 24, 8), (200, 24, 4)])
def test_the_table_is_as_wide_as_the_terminal_and_never_higher(width, height, num_lines):
    row = dict.fromkeys(TABLE, 1234.5)
    console = Console(width=width, height=height, color_system=None, file=io.StringIO())
    console.print(table_of("ppo on X", Progress(500, 1000, 2.0, 1.0, row), width, height))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == num_lines < height
    assert len(lines[0]) == width
