"""What a program registers in Python: the same kinds and the same lookup as entry points, in one process."""

import subprocess
import sys

import gymnasium
import pytest

import relayrl
from relayrl.config.plugin_registry import PluginKind, unregister_plugin
from relayrl.errors import ConfigError
from relayrl.extend import AlgorithmPlugin, SinkPlugin, StatisticsWriter, assemble
from relayrl.testing import CountingEnv, example_trajectories

QUICK = {"num_envs": 2, "time_horizon": 8, "summary_freq": 16, "train_pi_iters": 1, "train_vf_iters": 1}
QUICK |= {"evaluation.episodes": 2, "checkpoint_interval": 32}
MINE = "registered-here"


@pytest.fixture(autouse=True)
def forgotten():
    """What a test registers as `MINE`, other tests do not see."""
    yield
    for kind in PluginKind:
        unregister_plugin(kind, MINE)


def counting():
    return CountingEnv(terminate_at=4)


def train(path, **arguments):
    return relayrl.train(
        steps=32, run_dir=path, settings=QUICK | arguments.pop("settings", {}), progress=False, **arguments
    )


def test_any_factory_is_an_environment_in_this_process():
    relayrl.register_environment(MINE, lambda terminate_at=4: CountingEnv(terminate_at=terminate_at))
    env = relayrl.make_env(MINE, num_envs=2, terminate_at=1)
    env.reset(seed=0)
    assert env.step({"agent": [[0], [0]]}).episode_over.tolist() == [True, True]
    env.close()


def test_a_factory_of_a_module_works_in_workers_and_so_does_a_lambda(tmp_path):
    relayrl.register_environment(MINE, counting)
    assert train(tmp_path / "run", env=MINE, settings={"workers": 1}).result.num_env_steps == 32
    unregister_plugin(PluginKind.ENVIRONMENT, MINE)
    relayrl.register_environment(MINE, lambda: CountingEnv())
    assert train(tmp_path / "other", env=MINE, settings={"workers": 1}).result.num_env_steps == 32


def test_an_agents_environment_may_be_a_registered_one():
    relayrl.register_environment(MINE, counting)
    trainer = relayrl.RelayRLTrainer.ppo(
        relayrl.TrainerArgs("x", "x", observation_space=CountingEnv().observation_space, act_dim=2)
    )
    with relayrl.AgentBuilder().default_model(trainer.policies["agent"]).build() as agent:
        (actor_id,) = agent.get_actor_ids()
        agent.set_env(actor_id, MINE, 3)
        assert agent.run_env(actor_id, 5).num_env_steps == 15


def test_a_resumed_run_needs_the_registration_again(tmp_path):
    relayrl.register_environment(MINE, counting)
    train(tmp_path / "run", env=MINE)
    resumed = relayrl.train(run_dir=tmp_path / "run", resume=True, settings={"max_steps": 64}, progress=False)
    assert resumed.result.num_env_steps == 64
    assert relayrl.load_run(tmp_path / "run").evaluate(episodes=1).lengths == (4,)

    unregister_plugin(PluginKind.ENVIRONMENT, MINE)
    with pytest.raises(ConfigError, match=rf"run: unknown environment '{MINE}'.*register_… must do so again"):
        relayrl.train(run_dir=tmp_path / "run", resume=True, settings={"max_steps": 96}, progress=False)
    workers = {"max_steps": 96, "workers": 1}
    with pytest.raises(ConfigError, match="register_… must do so again"):
        relayrl.train(run_dir=tmp_path / "run", resume=True, settings=workers, progress=False)
    with pytest.raises(ConfigError, match="register_… must do so again"):
        relayrl.load_run(tmp_path / "run").evaluate(episodes=1)
    command = [sys.executable, "-m", "relayrl.cli.main", "evaluate", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "register_… must do so again" in done.stderr) == (2, True)


class Steps(StatisticsWriter):
    def __init__(self, path):
        self.path = path / "steps.txt"

    def write(self, num_env_steps, row):
        with self.path.open("a") as file:
            file.write(f"{num_env_steps}\n")


def test_algorithms_networks_and_writers_of_a_program(tmp_path):
    from torch import nn

    plain = AlgorithmPlugin(
        relayrl.PPOParams, "PPO by another name", lambda own, env: assemble(own.model_copy(update={"algo": "ppo"}), env)
    )
    relayrl.register_algorithm(MINE, plain)
    relayrl.register_network(
        MINE, lambda network: lambda encoder, outputs, gain, generator: nn.Linear(encoder.num_features, outputs)
    )
    relayrl.register_writer(MINE, Steps)
    chosen = {"network.kernel": MINE, "statistics.writers": [MINE]}
    run = train(tmp_path / "run", env="relayrl.testing:CountingEnv", algo=MINE, settings=chosen)
    assert (run.path / "steps.txt").read_text().split() == ["16", "32"]
    assert run.settings.algo == MINE

    unregister_plugin(PluginKind.ALGORITHM, MINE)
    with pytest.raises(ConfigError, match=rf"unknown algorithm '{MINE}'.*register_… must do so again"):
        _ = relayrl.load_run(run.path).settings


def test_a_scheme_is_a_sink_wherever_urls_go(tmp_path):
    def place(url):
        return f"arrow:{tmp_path / url.partition(':')[2]}"

    mine = SinkPlugin(lambda url, own: relayrl.open_sink(place(url), own), lambda url: relayrl.open_source(place(url)))
    relayrl.register_sink(MINE, mine)
    trajectories = list(example_trajectories(seed=0))
    with relayrl.open_sink(f"{MINE}:written") as sink:
        sink.write(trajectories)
    with relayrl.open_source(f"{MINE}:written") as source:
        assert source.count().num_trajectories == len(trajectories)

    train(tmp_path / "run", env="relayrl.testing:CountingEnv", settings={"record": f"{MINE}:recorded"})
    observed = CountingEnv().observation_space
    trainer = relayrl.RelayRLTrainer.ppo(relayrl.TrainerArgs("x", tmp_path, observation_space=observed, act_dim=2))
    trainer.receive_trajectory(f"{MINE}:recorded")
    with relayrl.open_source(f"{MINE}:recorded") as source:
        assert (source.count().num_steps, trainer.num_pending) == (32, source.count().num_trajectories)


@pytest.mark.parametrize(
    ("register", "name", "what", "why"),
    [
        (relayrl.register_environment, "CartPole-v1", counting, "would hide a built-in name"),
        (relayrl.register_environment, "a:b", counting, "would hide a built-in name"),
        (relayrl.register_environment, MINE, 3, "a function or class that makes one, not 3"),
        (relayrl.register_algorithm, "ppo", None, "is an algorithm of RelayRL"),
        (relayrl.register_algorithm, MINE, relayrl.PPOParams, "must be an AlgorithmPlugin"),
        (relayrl.register_sink, "arrow", None, "cannot be the scheme of a sink"),
        (relayrl.register_sink, "C", None, "cannot be the scheme of a sink"),
        (relayrl.register_sink, MINE, counting, "must be a SinkPlugin"),
    ],
)
def test_what_cannot_be_registered_says_why(register, name, what, why):
    with pytest.raises(ConfigError, match=why):
        register(name, what)


def test_a_name_is_taken_once_and_a_definition_may_be_run_again():
    relayrl.register_environment(MINE, counting)
    again = {"__name__": counting.__module__}
    exec("def counting(): return None", again)
    relayrl.register_environment(MINE, again["counting"])
    with pytest.raises(ConfigError, match=f"environment '{MINE}' is registered already"):
        relayrl.register_environment(MINE, gymnasium.Env)
    with pytest.raises(ConfigError, match=f"unknown environment '{MINE}x'; did you mean '{MINE}'"):
        relayrl.make_env(f"{MINE}x")
