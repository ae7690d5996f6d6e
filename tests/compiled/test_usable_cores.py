"""How many threads the kernels take: one a core that the process may use, or what it was told."""

from pathlib import Path

import pytest

from relayrl.compiled import loader, usable_cores
from relayrl.errors import ConfigError

V2 = "0::/a/b\n"
V1 = "3:cpu,cpuacct:/a/b\n2:memory:/a\n"


def quota(folder: Path, membership: str, files: dict[str, str]) -> float | None:
    (folder / "cgroup").write_text(membership)
    for name, text in files.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_cores.cgroup_quota(folder / "root", folder / "cgroup")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("", {}, None),
        (V2, {"a/b/cpu.max": "max 100000\n"}, None),
        (V2, {"a/b/cpu.max": "350000 100000\n"}, 3.5),
        (V2, {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "200000 100000\n"}, 2.0),
        (V2, {"a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "150000 50000\n"}, 3.0),
        ("0::/../../elsewhere\n", {"cpu.max": "100000 100000\n"}, 1.0),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "-1\n", "cpu/a/b/cpu.cfs_period_us": "100000\n"}, None),
        (V1, {"cpu,cpuacct/a/b/cpu.cfs_quota_us": "250000\n", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n"}, 2.5),
        (V1, {"cpu/cpu.cfs_quota_us": "800000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8.0),
        (V2, {"a/b/cpu.max": "nonsense"}, None),
        (V2, {"a/b/cpu.max": "100000 0"}, None),
    ],
)
def test_the_smallest_limit_of_all_groups_holds(tmp_path, membership, files, expected):
    assert quota(tmp_path, membership, files) == expected


@pytest.mark.parametrize(("limit", "cores"), [(None, 6), (0.5, 1), (3.9, 3), (64.0, 6)])
def test_cores_are_those_of_the_affinity_within_the_limit(monkeypatch, limit, cores):
    monkeypatch.setattr(usable_cores, "cgroup_quota", lambda *_: limit)
    monkeypatch.setattr(usable_cores.os, "sched_getaffinity", lambda _: set(range(6)))
    assert usable_cores.num_cores.__wrapped__() == cores


def default_num_threads() -> int:
    return loader._default_num_threads.__wrapped__()


def test_there_is_a_thread_for_each_core_up_to_what_the_pool_takes(monkeypatch):
    monkeypatch.delenv(loader.THREADS_VARIABLE, raising=False)
    for cores, threads in ((1, 1), (3, 3), (16, 16), (200, 64)):
        monkeypatch.setattr(loader, "num_cores", lambda n=cores: n)
        assert default_num_threads() == threads


def test_the_variable_decides_and_what_is_no_number_is_refused(monkeypatch):
    monkeypatch.setattr(loader, "num_cores", lambda: 3)
    monkeypatch.setenv(loader.THREADS_VARIABLE, "8")
    assert default_num_threads() == 8
    for wrong in ("0", "65", "two", "-1", "1.5"):
        monkeypatch.setenv(loader.THREADS_VARIABLE, wrong)
        with pytest.raises(ConfigError, match=f"RELAYRL_THREADS={wrong}: a number from 1 to 64"):
            default_num_threads()


def test_a_program_may_set_the_number():
    loader.set_num_threads(5)
    try:
        assert loader.num_threads() == 5
    finally:
        loader.set_num_threads(None)


@pytest.mark.skipif(loader.kernels() is None, reason="needs the compiled kernels")
def test_the_pool_takes_as_many_threads_as_the_loader_says():
    assert loader.kernels().MAX_THREADS == loader.MAX_THREADS
