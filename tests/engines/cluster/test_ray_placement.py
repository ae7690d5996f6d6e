"""Where parts of a run are on a real Ray cluster of several nodes: collectors spread or packed, learners packed, by what they
reserve; and what becomes of requests that no node can meet."""

import contextlib
from collections import Counter

import psutil
import pytest

import relayrl
from ray_clusters import connected, ray_cluster
from relayrl.engines.cluster.ray_placement import Need, total_needs
from relayrl.engines.settings.cluster_settings import PlacementSettings
from relayrl.errors import ConfigError
from waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's
SETTINGS = {
    "num_envs": 4,
    "time_horizon": 16,
    "checkpoint_interval": 384,
    "evaluation.episodes": 0,
    "network.hidden_sizes": [16],
    "tensorboard": False,
}


@pytest.fixture(scope="module")
def nodes():
    """A head without CPUs and three nodes, by name; `rooms` are theirs, of two CPUs and two rooms each."""
    rooms = [{"room": 2}, {"room": 2}, {"shelf": 2}]
    with (
        ray_cluster({"num_cpus": 0}, [{"num_cpus": 2, "resources": each} for each in rooms]) as (made, added),
        connected(address=made.address),
    ):
        yield dict(zip(("a", "b", "learners"), added, strict=True))


def where(nodes, kind):
    """How many Ray actors of a kind each node has."""
    raylets = {node.all_processes["raylet"][0].process.pid: name for name, node in nodes.items()}
    found = Counter()
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            if "".join(each.cmdline()).startswith(f"ray::{kind}"):
                found[raylets[each.ppid()]] += 1
    return dict(found)


def train(path, settings, **arguments):
    chosen = {**SETTINGS, **settings}
    return relayrl.train(
        "CartPole-v1", algo="ppo", steps=256, run_dir=path, settings=chosen, progress=False, **arguments
    ).result


def seen_during(nodes, kind, path, settings):
    """The result of a run, and where its actors were in the middle of it."""
    seen = []

    def look(run):
        if run.num_env_steps >= 128 and not seen:
            seen.append(where(nodes, kind))

    result = train(path, {"engine": "ray", **settings}, callbacks=[look])
    wait_until(lambda: not where(nodes, kind))
    return result, seen[0]


@pytest.mark.parametrize(
    ("strategy", "placed"), [("spread", [{"a": 1, "b": 1}]), ("pack", [{"a": 2}, {"b": 2}])], ids=str
)
def test_collectors_are_where_their_resources_are_spread_or_packed(strategy, placed, nodes, tmp_path):
    placement = {"cluster.placement.strategy": strategy, "collector_resources": {"room": 1}}
    result, seen = seen_during(nodes, "CollectorProcess", tmp_path / "ray", {"workers": 2, **placement})
    assert seen in placed
    assert result.parameter_hash == train(tmp_path / "local", {}).parameter_hash


def test_learners_are_packed_where_their_resources_are_and_learn_what_processes_would(nodes, tmp_path):
    placement = {"workers": 2, "learner_resources": {"shelf": 1}, "learners": 3, "learner_cpus": 0.5}
    result, seen = seen_during(nodes, "LearnerActor", tmp_path / "ray", placement)
    assert seen == {"learners": 2}
    assert result.parameter_hash == train(tmp_path / "local", {"learners": 3}).parameter_hash


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"workers": 2, "collector_resources": {"castle": 1}},
            r"environments 0 to 1 has not begun within 2 s; asked for 2 × \(CPU 1, castle 1\); the cluster "
            r"has 4 nodes, CPU \d of 6 free, no castle: lower --workers",
        ),
        (
            {"workers": 2, "collector_cpus": 3},
            r"has not begun within 2 s; asked for 2 × \(CPU 3\); .* CPU 6 of 6 free: lower",
        ),
        (
            {"learners": 4, "learner_resources": {"shelf": 1}},
            r"no room for 3 learners within 2 s: asked for 3 × \(CPU 1, shelf 1\); .* shelf 2 of 2 free; lower learners",
        ),
    ],
    ids=["no such resource", "no node is as large", "fewer than learners"],
)
def test_a_request_that_no_node_can_meet_ends_in_one_line(settings, says, nodes, tmp_path):
    with pytest.raises(ConfigError, match=says) as info:
        train(tmp_path / "run", {"engine": "ray", "start_timeout_s": 2, **settings})
    assert "\n" not in str(info.value)
    assert not (tmp_path / "run").exists()
    import ray

    wait_until(lambda: ray.available_resources().get("CPU") == 6)  # nothing stays reserved


def test_needs_add_up_over_collectors_and_learners():
    placement = PlacementSettings(collector_cpus=0.5, collector_resources={"room": 1}, learner_gpus=1)
    assert total_needs(placement, 4, 2) == {"CPU": 4.0, "room": 4.0, "GPU": 2.0}
    assert Need(0.0).bundle() == {}
    assert str(Need(0.0)) == "nothing"
