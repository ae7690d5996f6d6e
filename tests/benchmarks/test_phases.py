"""Where the time of an iteration goes: what is measured, and the table in the docs."""

import phases


def test_phases_of_an_iteration_are_timed(monkeypatch):
    monkeypatch.setattr(phases, "SECONDS", 0.1)
    figures = phases.run_work("W1", "native:CartPole")
    assert figures["steps"] == 8 * 128
    assert min(figures[name] for name in ("environment", "collect", "learn")) > 0


def test_the_table_replaces_the_one_before(monkeypatch, tmp_path, capsys):
    page = tmp_path / "speed.md"
    page.write_text(f"before\n{phases.BEGIN}\nold\n{phases.END}\nafter\n")
    monkeypatch.setattr(phases, "PAGE", page)
    times = {"off": {"collect": 2.0, "learn": 30.0}, "": {"collect": 1.0, "learn": 10.0}}
    monkeypatch.setattr(phases, "measure", lambda _w, _v, k: {**times[k], "environment": 0.5, "steps": 1024})
    monkeypatch.setattr("sys.argv", ["phases.py"])
    phases.main()
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| W1 CartPole-v1 | 1,024 | 2 + 30 | 1 + 10 | 0.5 |" in lines
    assert "old" not in lines
    monkeypatch.setattr("sys.argv", ["phases.py", "--only", "W5"])
    phases.main()
    assert page.read_text().splitlines() == lines
    assert "W5-sac" in capsys.readouterr().out
