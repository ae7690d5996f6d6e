"""Every metric that a run writes has its line in docs/metrics.md."""

import ast
import re
from pathlib import Path

import pytest

import relayrl

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
DOCUMENTED = {
    name for line in PAGE.splitlines() if line.startswith("|") for name in re.findall(r"`([^`]+)`", line.split("|")[1])
}
COMMON = {"summary_freq": 32, "hidden_sizes": [8], "evaluation.episodes": 0, "evaluation.interval": 64}
ON_POLICY = {"time_horizon": 16, "train_vf_iters": 1, "checkpoint_interval": 32}
OFF_POLICY = {"learning_starts": 16, "batch_size": 8, "update_interval": 4, "train_iters": 1}
LESSONS = [
    {"name": "short", "value": 10, "completion_criteria": {"behavior": "agent", "threshold": 1e9}},
    {"name": "long", "value": 20},
]
GAIL = {"options": {"demo_path": "demos", "use_vail": True}}
RUNS = {
    "ppo": (
        "native:CartPole",
        ON_POLICY
        | {
            "train_pi_iters": 1,
            "reward_signals": {"extrinsic": {"strength": 0.5}, "rnd": {}, "curiosity": {}, "gail": GAIL},
        }
        | {"behavioral_cloning": {"demo_path": "demos"}}
        | {"environment_parameters": {"max_episode_steps": {"curriculum": LESSONS}}},
    ),
    "ippo": ("native:simple_tag", ON_POLICY | {"train_pi_iters": 1, "threaded": True}),
    "impala": ("native:CartPole", ON_POLICY | {"max_policy_lag": 2}),
    "maappo": ("native:simple_tag", ON_POLICY | {"train_pi_iters": 1, "threaded": True}),
    "mappo": (
        "relayrl.testing.toy_environments:MatrixGame",
        ON_POLICY | {"train_pi_iters": 1, "opponents": ["random"]},
    ),
    "poca": (
        "native:simple_tag",
        ON_POLICY | {"train_pi_iters": 1, "self_play.window": 3, "environment.options.max_cycles": 5},
    ),
    "reinforce": ("native:CartPole", ON_POLICY | {"with_vf_baseline": True}),
    "td3": ("native:Pendulum", OFF_POLICY),
    "sac": ("native:Pendulum", OFF_POLICY),
}


def _without_names(name: str, groups: set[str]) -> str:
    """A column as the page has it: without the name of a group or agent, and of any opponent."""
    if name.startswith("agents/"):
        return name.split("/", 2)[2]
    if name.startswith("signals/"):
        return f"signals/NAME/{name.split('/', 2)[2]}"
    if name.startswith("curriculum/"):
        return f"curriculum/NAME/{name.split('/', 2)[2]}"
    return name.split("/", 1)[1] if name.split("/")[0] in groups else name.replace("/random/", "/OPPONENT/")


@pytest.mark.parametrize("algo", RUNS)
def test_every_metric_is_documented(algo, tmp_path):
    env, settings = RUNS[algo]
    if "demos" in str(settings):  # recorded here
        url = f"arrow:{tmp_path / 'demos'}"
        first = COMMON | ON_POLICY | {"record": url, "train_pi_iters": 1}
        relayrl.train(env, algo="ppo", steps=64, run_dir=tmp_path / "first", settings=first, progress=False)
        settings = ast.literal_eval(repr(settings).replace("'demos'", repr(url)))
    given = {"algo": algo, "steps": 128, "num_envs": 2, "progress": False}
    run = relayrl.train(env, run_dir=tmp_path / "run", settings=COMMON | settings, **given)
    groups = {group.removesuffix("/") for group in run.policies}
    names = {_without_names(name, groups) for name in run.history}
    assert names <= DOCUMENTED
    assert {"num_env_steps", "time/collect_share", "system/peak_memory_mib", "evaluation/return_mean"} <= names
