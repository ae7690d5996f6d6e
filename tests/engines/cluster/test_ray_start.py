"""A Ray cluster that does not start: it is tried once more, then told in one line."""

import pytest

from relayrl.engines.cluster.ray_runtime import RayRuntime, import_ray
from relayrl.engines.settings.cluster_settings import ClusterSettings
from relayrl.errors import ServerUnreachableError


def failing(monkeypatch, messages):
    """Ray's `init` as it raises on a busy machine, for as long as there are messages."""
    calls = []

    def init(**options):
        calls.append(options)
        if len(calls) <= len(messages):
            raise Exception(messages[len(calls) - 1])

    monkeypatch.setattr(import_ray(), "init", init)
    return calls


SLOW = "The current node timed out during startup. This could happen because ..."


def test_ray_is_started_once_more(monkeypatch, caplog):
    calls = failing(monkeypatch, [SLOW])
    RayRuntime(ClusterSettings(), 2)
    assert len(calls) == 2
    assert calls[0] == calls[1]
    assert "started once more" in caplog.text


def test_ray_that_never_starts_is_one_line(monkeypatch):
    calls = failing(monkeypatch, [SLOW] * 5)
    with pytest.raises(ServerUnreachableError, match="did not start within its 30 seconds, twice"):
        RayRuntime(ClusterSettings(), 2)
    assert len(calls) == 2


def test_other_failures_of_ray_are_not_repeated(monkeypatch):
    calls = failing(monkeypatch, ["no space left"] * 5)
    with pytest.raises(Exception, match="no space left"):
        RayRuntime(ClusterSettings(), 2)
    assert len(calls) == 1
