"""Settings of runs: resuming with other ones, ML-Agents files, overrides per behaviour, the JSON Schema."""

import pytest
import yaml

from relayrl.algorithms.registry import algorithms
from relayrl.engines.local.run_parts import build_parts
from relayrl.engines.runs.resume_rules import check_changes
from relayrl.engines.settings.mlagents_settings import from_mlagents, is_mlagents
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings, presets
from relayrl.engines.settings.settings_schema import settings_schema
from relayrl.errors import ConfigError, UnknownNameError


def cartpole(**flags) -> RunSettings:
    return build_run_settings("CartPole-v1", None, {key.replace("__", "."): value for key, value in flags.items()}, [])


def test_what_only_prolongs_a_run_may_change():
    assert check_changes(cartpole(), cartpole()) == []
    assert check_changes(cartpole(), cartpole(trainer__max_steps=60_000, trainer__summary_freq=500)) == [
        "resuming with trainer.max_steps (50000 → 60000): allowed"
    ]


def test_a_changed_hyper_parameter_is_allowed_and_told():
    (line,) = check_changes(cartpole(), cartpole(params__gamma=0.5))
    assert line == "resuming with params.gamma (0.98 → 0.5): allowed, but the steps before had the old value"


def test_changed_threads_are_told_because_they_change_how_sums_are_rounded():
    (line,) = check_changes(cartpole(), cartpole(threads=2))
    assert line == "resuming with threads (1 → 2): allowed, but the steps before had the old value"


@pytest.mark.parametrize(
    "change",
    [{"network__hidden_sizes": (8,)}, {"seed": 3}, {"environment__num_envs": 3}, {"environment__options": {"a": 1}}],
)
def test_what_decides_the_saved_state_may_not(change):
    with pytest.raises(ConfigError, match="cannot resume with a changed"):
        check_changes(cartpole(), cartpole(**change))


def test_behaviours_override_networks_and_params():
    settings = cartpole(behaviors={"adversary": {"network": {"hidden_sizes": [8]}, "params": {"gamma": 0.5}}})
    assert settings.network_of("adversary").hidden_sizes == (8,)
    assert settings.params_of("adversary").gamma == 0.5
    assert settings.params_of("adversary").lam == settings.params.lam
    assert settings.network_of("agent") is settings.network


def test_a_wrong_override_names_the_nearest_and_where():
    with pytest.raises(ConfigError, match=r"in behaviors.a.params: .*gamma"):
        cartpole(behaviors={"a": {"params": {"gama": 0.5}}})


def test_a_pair_needs_no_text():
    settings = build_run_settings("CartPole-v1", None, {}, [("gamma", 0.5), ("network.hidden_sizes", (4, 4))])
    assert (settings.params.gamma, settings.network.hidden_sizes) == (0.5, (4, 4))


def test_a_target_needs_evaluations():
    with pytest.raises(ConfigError, match="interval"):
        cartpole(evaluation__target_return=400.0)


PPO_YAML = """
behaviors:
  Walker:
    trainer_type: ppo
    hyperparameters:
      {batch_size: 64, buffer_size: 1024, learning_rate: 3.0e-4, learning_rate_schedule: linear, beta: 0.01, epsilon: 0.3,
       lambd: 0.9, num_epoch: 4, beta_schedule: linear, epsilon_schedule: constant}
    network_settings: {hidden_units: 32, num_layers: 3, normalize: true, vis_encode_type: simple}
    reward_signals:
      extrinsic: {gamma: 0.95, strength: 0.5}
      curiosity: {gamma: 0.95, strength: 0.02, learning_rate: 1.0e-4, network_settings: {hidden_units: 32, normalize: true}}
      rnd: {strength: 0.03}
      gail: {strength: 0.1, demo_path: Demos/Walker.demo, use_vail: true, learning_rate: 2.0e-4}
    behavioral_cloning: {demo_path: Demos/Walker.demo, steps: 5000, strength: 0.5}
    max_steps: 9000
    summary_freq: 300
    self_play: {window: 7, save_steps: 500, team_change: null}
  Goalie:
    hyperparameters: {batch_size: 64, buffer_size: 1024, learning_rate: 1.0e-3, beta: 0.01, epsilon: 0.3, lambd: 0.9,
      num_epoch: 4}
    network_settings: {hidden_units: 16, num_layers: 3, normalize: true}
    reward_signals: {extrinsic: {gamma: 0.95}}
    max_steps: 9000
    summary_freq: 500
env_settings: {num_envs: 4, seed: 5, env_path: Builds/Walker}
"""


def test_an_mlagents_ppo_file_is_mapped(tmp_path):
    (tmp_path / "walker.yaml").write_text(PPO_YAML)
    notes: list[str] = []
    settings = build_run_settings("CartPole-v1", tmp_path / "walker.yaml", {}, [], notes)
    params = settings.params
    assert (params.pi_lr, params.vf_lr, params.entropy_coef, params.clip_ratio, params.lam) == (
        3e-4,
        3e-4,
        0.01,
        0.3,
        0.9,
    )
    assert (params.train_pi_iters, params.num_minibatches, params.gamma, params.target_kl) == (4, 16, 0.95, None)
    assert (settings.network.hidden_sizes, settings.network.normalize_observations) == ((32, 32, 32), True)
    assert (settings.network.encoder.value, settings.network.encoder_size) == ("simple", 32)
    assert (settings.trainer.max_steps, settings.trainer.summary_freq, settings.trainer.time_horizon) == (
        9000,
        300,
        256,
    )
    assert (settings.seed, settings.environment.num_envs) == (5, 4)
    assert settings.network_of("Goalie").hidden_sizes == (16, 16, 16)
    assert settings.params_of("Goalie").pi_lr == 1e-3
    signals = settings.reward_signals
    assert list(signals) == ["extrinsic", "rnd", "gail", "curiosity"]
    assert [each.strength for each in signals.values()] == [0.5, 0.03, 0.1, 0.02]
    assert signals["curiosity"].options == {
        "learning_rate": 1e-4,
        "network": {"hidden_sizes": [32, 32], "encoder": "simple", "encoder_size": 32},
    }
    assert signals["gail"].options == {"learning_rate": 2e-4, "demo_path": "Demos/Walker.demo", "use_vail": True}
    cloning = settings.behavioral_cloning
    assert (cloning.demo_path, cloning.strength, cloning.steps) == ("Demos/Walker.demo", 0.5, 5000)
    assert (cloning.batch_size, cloning.num_epoch) == (64, 4)  # the algorithm's own there
    assert cloning.samples_per_update == 0
    assert settings.schedules == {
        "entropy_coef": "linear(0.01, 1e-05)",
        "Goalie.clip_ratio": "linear(0.3, 0.1)",  # not given: as its learning rate's, which is linear by default
    }
    assert (settings.self_play.window, settings.self_play.team_change, settings.self_play.swap_steps) == (7, 2500, 2000)
    told = {note.split()[2] for note in notes}
    assert told == {
        "Walker.reward_signals.curiosity.network_settings.normalize",
        "Goalie.reward_signals",
        "Goalie.behavioral_cloning",
        "Goalie.self_play",
        "Goalie.summary_freq",
        "env_settings.env_path",
    }


def test_an_mlagents_list_of_signals_without_extrinsic_leaves_the_environments_reward_out(tmp_path):
    (tmp_path / "curious.yaml").write_text("behaviors: {Walker: {reward_signals: {rnd: {strength: 0.5}}}}")
    settings = build_run_settings("CartPole-v1", tmp_path / "curious.yaml", {}, [])
    strengths = {name: signal.strength for name, signal in settings.reward_signals.items()}
    assert strengths == {"extrinsic": 0.0, "rnd": 0.5}


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        (
            {"rnd": {"gamma": 0.9}},
            r"rnd.gamma is 0.9 and params.gamma 0.99: signals are added to the reward before one value",
        ),
        ({"rnd": {"options": {"learning_rat": 1}}}, r"in reward_signals.rnd.options: .*did you mean 'learning_rate'"),
        (
            {"curiosity": {"options": {"network": {"hidden_sizes": [0]}}}},
            r"in reward_signals.curiosity.options: .*hidden_sizes",
        ),
        ({"extrinsic": {"options": {"a": 1}}}, "extrinsic is the environment's own reward and takes no options"),
        ({"rnd": {"strength": float("nan")}}, "reward_signals.rnd.strength"),
    ],
)
def test_wrong_reward_signals_are_refused_in_one_line(signals, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build_run_settings("native:CartPole", None, {"reward_signals": signals}, [])
    assert "\n" not in str(caught.value)


def test_a_discount_that_is_the_algorithms_is_taken_for_every_group():
    flags = {"params.gamma": 0.9, "reward_signals": {"rnd": {"gamma": 0.9}}}
    assert build_run_settings("native:CartPole", None, flags, []).reward_signals["rnd"].gamma == 0.9
    with pytest.raises(ConfigError, match="one discount"):
        build_run_settings(
            "native:simple_tag", None, flags | {"behaviors": {"agent_0": {"params": {"gamma": 0.8}}}}, []
        )


def test_records_are_learned_from_without_reward_signals():
    flags = {"algo": "sac", "learn_from": "arrow:x", "reward_signals": {"rnd": {}}}
    with pytest.raises(ConfigError, match="with the rewards they have"):
        build_run_settings("native:Pendulum", None, flags, [])


SAC_YAML = """
default_settings: {trainer_type: sac, max_steps: 700}
behaviors:
  Crawler:
    hyperparameters: {batch_size: 32, buffer_size: 5000, buffer_init_steps: 64, tau: 0.01, steps_per_update: 10.0,
      init_entcoef: 0.5, learning_rate: 1.0e-3, save_replay_buffer: false, reward_signal_steps_per_update: 10.0}
    network_settings: {hidden_units: 64}
    threaded: false
"""


def test_an_mlagents_sac_file_is_mapped():
    values, notes = from_mlagents(yaml.safe_load(SAC_YAML))
    settings = RunSettings.model_validate({"env": "Pendulum-v1", **values})
    params = settings.params
    assert settings.algo == "sac"
    assert settings.trainer.max_steps == 700
    assert (params.batch_size, params.buffer_size, params.learning_starts, params.tau) == (32, 5000, 64, 0.01)
    assert (params.update_interval, params.init_temperature, params.actor_lr, params.critic_lr) == (10, 0.5, 1e-3, 1e-3)
    assert [note.split()[2] for note in notes] == ["Crawler.hyperparameters.reward_signal_steps_per_update"]


def test_our_own_files_are_not_taken_for_theirs():
    assert not is_mlagents({"env": "x", "behaviors": {"a": {"network": {"hidden_sizes": [8]}}}})
    assert is_mlagents(yaml.safe_load(PPO_YAML))


def test_an_unknown_trainer_type_names_those_that_exist():
    with pytest.raises(UnknownNameError, match="ppo"):
        from_mlagents({"behaviors": {"A": {"trainer_type": "pppo"}}})


def test_behaviours_of_two_algorithms_are_refused():
    with pytest.raises(ConfigError, match="runs of their own"):
        from_mlagents({"behaviors": {"A": {"trainer_type": "ppo"}, "B": {"trainer_type": "sac"}}})


def test_the_schema_describes_every_algorithm_and_setting():
    schema = settings_schema()
    rules = {rule["if"]["properties"]["algo"]["const"]: rule["then"] for rule in schema["allOf"]}
    assert rules.keys() == algorithms().keys()
    for name, entry in algorithms().items():
        params = schema["$defs"][rules[name]["properties"]["params"]["$ref"].removeprefix("#/$defs/")]
        assert params["properties"].keys() == entry.params.model_fields.keys()
        assert params["additionalProperties"] is False
        assert all("description" in field for field in params["properties"].values())
    assert schema["properties"].keys() == RunSettings.model_fields.keys()


def references(node):
    if isinstance(node, dict):
        yield from ([node["$ref"]] if "$ref" in node else [])
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_reference_of_the_schema_leads_somewhere():
    schema = settings_schema()
    assert {reference.removeprefix("#/$defs/") for reference in references(schema)} <= schema["$defs"].keys()


def test_every_preset_is_valid():
    for env, algo in presets():
        assert build_run_settings(env, None, {"algo": algo}, []).algo == algo


def test_overrides_that_would_be_ignored_are_refused():
    flags = {"algo": "td3", "environment.num_envs": 2, "behaviors": {"agent": {"params": {"gamma": 0.5}}}}
    with pytest.raises(ConfigError, match="one replay"):
        build_parts(build_run_settings("native:Pendulum", None, flags, []))
    flags = {"environment.num_envs": 2, "behaviors": {"agnet": {"params": {"gamma": 0.5}}}}
    with pytest.raises(UnknownNameError, match="unknown behaviour 'agnet'; did you mean 'agent'"):
        build_parts(build_run_settings("native:Pendulum", None, flags, []))


def test_an_environment_that_is_saved_otherwise_with_workers_is_not_resumed_with_them():
    before = build_run_settings("CartPole-v1", None, {}, [])
    after = build_run_settings("CartPole-v1", None, {"environment.workers": 2}, [])
    with pytest.raises(ConfigError, match=r"cannot resume CartPole-v1 with a changed environment\.workers \(0 → 2\)"):
        check_changes(before, after)
    more = build_run_settings("CartPole-v1", None, {"environment.workers": 4}, [])
    assert len(check_changes(after, more)) == 1
