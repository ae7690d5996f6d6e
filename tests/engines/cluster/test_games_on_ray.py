"""A user's own game on Ray, with everything at once: teams whose agents die, masks, lessons by Elo, records, resume, export."""

import csv
import sys

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import relayrl
from cli_in_process import relayrl as command
from ray_clusters import connected
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's
LOAD, HIDE, SHOOT = range(3)


class Duel(ParallelEnv):
    """Two against two: who is hit leaves, and the last team wins. Only a loaded gun shoots, and hits as `danger` says."""

    metadata = {"name": "duel_v0"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self):
        self.possible_agents = ["red_0", "red_1", "blue_0", "blue_1"]
        self.danger, self.rng = 0.5, np.random.default_rng(0)

    def set_parameters(self, values):
        self.danger = values["danger"]

    def observation_space(self, agent):
        seen = spaces.Box(-1.0, 1.0, (6,), np.float32)
        return spaces.Dict({"observation": seen, "action_mask": spaces.MultiBinary(3)})

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.num_steps = self.possible_agents[:], 0
        self.is_loaded = dict.fromkeys(self.agents, False)
        return self.observe(), {agent: {} for agent in self.agents}

    def observe(self):
        lives = [float(each in self.agents) for each in self.possible_agents]
        return {
            agent: {
                "observation": np.array([*lives, self.is_loaded[agent], self.danger], np.float32),
                "action_mask": np.array([1, 1, self.is_loaded[agent]], np.int8),
            }
            for agent in self.agents
        }

    def step(self, actions):
        self.num_steps += 1
        hit = {self.target(agent, actions) for agent, action in actions.items() if action == SHOOT} - {None}
        for agent, action in actions.items():
            assert action != SHOOT or self.is_loaded[agent]
            self.is_loaded[agent] = action == LOAD or (self.is_loaded[agent] and action == HIDE)
        rewards = {agent: float(sum(1 if agent[0] != each[0] else -1 for each in hit)) for agent in self.agents}
        left = [agent for agent in self.agents if agent not in hit]
        is_over, is_late = len({agent[0] for agent in left}) < 2, self.num_steps >= 12
        terminated = {agent: agent in hit or is_over for agent in self.agents}
        truncated = {agent: is_late and not terminated[agent] for agent in self.agents}
        seen, infos = self.observe(), {agent: {} for agent in self.agents}
        self.agents = [] if is_over or is_late else left
        return seen, rewards, terminated, truncated, infos

    def target(self, shooter, actions):
        """Who is hit, if anybody."""
        foes = [agent for agent in self.agents if agent[0] != shooter[0]]
        found = foes[self.rng.integers(len(foes))]
        return found if self.rng.random() < self.danger * (0.3 if actions[found] == HIDE else 1.0) else None


LESSONS = [
    {
        "name": "tame",
        "value": 0.4,
        "completion_criteria": {"measure": "Elo", "behavior": "red", "min_lesson_length": 10, "threshold": 1202},
    },
    {
        "name": "wild",
        "value": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.3, "max_value": 0.9}},
        "completion_criteria": {"measure": "progress", "behavior": "red", "threshold": 0.7},
    },
    {"name": "deadly", "value": 0.9},
]
SETTINGS = {
    "num_envs": 6,
    "time_horizon": 32,
    "summary_freq": 192,
    "checkpoint_interval": 384,
    "evaluation.episodes": 4,
    "network.hidden_sizes": [16],
    "tensorboard": False,
    "environment_parameters": {"danger": {"curriculum": LESSONS}},
    "self_play.save_steps": 384,
    "self_play.swap_steps": 192,
    "self_play.team_change": 576,
    "self_play.window": 3,
}
STEPS = 2304


@pytest.fixture
def ray_here():
    with connected(address="local", num_cpus=3, include_dashboard=False) as ray:
        yield ray


def interrupt(run):
    if run.num_env_steps >= STEPS // 2:
        raise KeyboardInterrupt


def play(path, **placed):
    """Train, interrupted in the middle; gives the run."""
    settings = {**SETTINGS, "record": f"arrow:{path}-steps", **placed}
    with pytest.raises(KeyboardInterrupt):
        relayrl.train("duel", steps=STEPS, run_dir=path, settings=settings, callbacks=[interrupt], progress=False)
    return relayrl.train(run_dir=path, resume=True, progress=False, trust=True)


def recorded(url):
    """What every agent did and got in every episode, how it ended and by which version; without ids, which are drawn."""
    found: dict = {}
    with relayrl.open_source(url) as source:
        for t in sorted(source, key=lambda each: each.first_step):
            assert np.take_along_axis(t.action_mask, t.action[:, None], 1).all()
            rows = zip(t.action.tolist(), t.reward.tolist(), t.policy_version.tolist(), strict=True)
            episode = found.setdefault(t.env_id, {}).setdefault((t.agent_id, t.episode), [])
            episode.extend([*rows, t.terminated, t.truncated])
    return sorted(map(repr, found.values()))


def test_a_users_game_is_played_on_ray_as_it_is_locally(ray_here, tmp_path):
    relayrl.register_environment("duel", Duel)
    try:
        with pytest.raises(
            ConfigError, match=f"No module named '{__name__}' on their nodes; install it there, or send it"
        ):
            play(tmp_path / "none", engine="ray", workers=3)
        ray_here.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as a script's own classes travel
        local, on_ray = play(tmp_path / "local"), play(tmp_path / "ray", engine="ray", workers=3)
        assert on_ray.result.parameter_hash == local.result.parameter_hash
        assert on_ray.result.returns == local.result.returns
    finally:
        unregister_plugin(PluginKind.ENVIRONMENT, "duel")
    lessons, ladders = [], []
    for name in ("local", "ray"):
        with open(tmp_path / name / "progress.csv") as file:
            lessons.append([(row["num_env_steps"], row["curriculum/danger/lesson"]) for row in csv.DictReader(file)])
        ladders.append(command("ladder", str(tmp_path / name), "--json").stdout)
    assert lessons[1] == lessons[0]
    assert (lessons[0][0][1], lessons[0][-1][1]) == ("0.0", "2.0")
    assert ladders[1] == ladders[0]
    steps = recorded(f"arrow:{tmp_path / 'local'}-steps")
    assert recorded(f"arrow:{tmp_path / 'ray'}-steps") == steps
    assert len(steps) == 6
    models = {path.name for path in (tmp_path / "ray").glob("*.onnx")}
    assert len(models) == 2  # a policy for each team
