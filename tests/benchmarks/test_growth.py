"""Cost growth: the points, and the table that is made of them."""

import growth


def test_points_cover_what_grows():
    sizes = {series.name: (series.sizes[0], series.sizes[-1]) for series in growth.SERIES}
    assert sizes == {
        "PPO environments": (1, 4096),
        "MAPPO agents": (1, 64),
        "MADDPG agents": (1, 64),
        "PPO width": (32, 1024),
        "TD3 width": (32, 1024),
    }
    for series in growth.SERIES[1:3]:
        point = series.points()[3]
        assert (point.size, point.flags["environment.options"]["N"]) == (8, 8)


def test_table_has_failures_and_gaps():
    rows = [
        {"series": "MAPPO agents", "size": 1, "threads": None, "env_steps_per_s": 1234.5, "peak_mib": 300.2},
        {"series": "MAPPO agents", "size": 2, "threads": None, "error": "ConfigError: no"},
    ]
    lines = [line for line in growth.table(rows) if line]
    start = lines.index(f"**{growth.SERIES[1].title}**")
    lines = lines[start:]
    assert lines[1] == "| | 1 | 2 | 4 | 8 | 16 | 32 | 64 |"
    assert lines[3].startswith("| steps/s, as it comes | 1,234 | ConfigError: no | not measured |")
    assert lines[4].startswith("| peak MiB | 300 | ConfigError: no | not measured |")


def test_a_point_is_timed_without_its_first_update(monkeypatch):
    monkeypatch.setattr(growth, "SECONDS", 0.1)
    result = growth.run_point(growth.SERIES[0].points()[1])
    assert result["env_steps_per_s"] > 0
    assert result["peak_mib"] > 50
