"""Reading a Unity ML-Agents trainer file (`behaviors:` with PPO or SAC keys) as settings of a run.

    behaviors:
      Walker:
        trainer_type: ppo
        hyperparameters: {batch_size: 64, buffer_size: 1024, learning_rate: 3.0e-4, beta: 0.01, epsilon: 0.2, …}
        network_settings: {hidden_units: 128, num_layers: 2, normalize: true, memory: {memory_size: 128, sequence_length: 64}}
        reward_signals: {extrinsic: {gamma: 0.99, strength: 1.0}}
        max_steps: 500000

The first behaviour describes the run; what others have different becomes overrides for the group of that name. The environment
is not in such a file: name it on the command line. What is not given has ML-Agents' default. Keys without a counterpart are
listed with the reason, never dropped in silence; unknown ones are refused (`mlagents_keys`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relayrl.engines.settings.mlagents_keys import notes_of
from relayrl.engines.settings.number_schedules import linear
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.network_settings import EncoderKind
from relayrl.training.signals.signal_registry import SIGNALS

Values = dict[str, Any]
_SCHEDULES = ("trainer_type", "hyperparameters", "network_settings", "reward_signals", "init_path", "self_play")
_TRAINER = ("max_steps", "summary_freq", "checkpoint_interval", "keep_checkpoints", "threaded", "time_horizon")
_SELF_PLAY = ("save_steps", "team_change", "swap_steps", "window", "play_against_latest_model_ratio", "initial_elo")
_ENCODERS = tuple(kind.value for kind in EncoderKind)
"""Called the same there; fully_connected convolves nothing."""
_GAIL = ("demo_path", "use_actions", "use_vail")
_CLONING = ("demo_path", "strength", "steps", "batch_size", "num_epoch", "samples_per_update")
_PPO = {"beta": ("entropy_coef", 5e-3), "epsilon": ("clip_ratio", 0.2), "lambd": ("lam", 0.95)}
_SAC = {
    "batch_size": ("batch_size", 128),
    "buffer_size": ("buffer_size", 50_000),
    "tau": ("tau", 0.005),
    "init_entcoef": ("init_temperature", 1.0),
}
"""Our names, and the defaults there."""
_LEAST = {"beta_schedule": ("entropy_coef", 1e-5), "epsilon_schedule": ("clip_ratio", 0.1)}
"""What linear schedules move to."""
_RATES = ("actor_lr", "critic_lr", "temperature_lr")
_ENGINE = ("width", "height", "quality_level", "time_scale", "target_frame_rate", "capture_frame_rate")
UNITY = "unity:"


def is_mlagents(values: Mapping[str, Any]) -> bool:
    """Whether a settings file is one of ML-Agents."""
    behaviors = values.get("behaviors") or {}
    mine = ("default_settings", "env_settings", "engine_settings", "checkpoint_settings", "torch_settings")
    return not values.keys().isdisjoint(mine) or (
        isinstance(behaviors, dict)
        and any(isinstance(b, dict) and not b.keys().isdisjoint(_SCHEDULES) for b in behaviors.values())
    )


def from_mlagents(values: Mapping[str, Any], env: str | None = None) -> tuple[Values, list[str]]:
    """Settings of a run, and one line for everything that was left out or read differently. Some keys are for `unity:`
    environments only."""
    left = _Remaining(values)
    default = left.take("default_settings", {})
    behaviors = left.take("behaviors", {}) or {}
    result: Values = {}
    notes: list[str] = []
    environment = _environment(left, result, notes, is_unity=env is not None and env.startswith(UNITY))
    num_envs = environment.get("num_envs", EnvSettings().num_envs)
    for i, (name, own) in enumerate(behaviors.items() or [("default_settings", {})]):
        mapped = _behavior(name, _merged(default, own), num_envs, notes)
        if i == 0:
            result |= mapped
        else:
            _add_override(result, name, mapped, notes)
    if environment:
        result["environment"] = environment
    return result, [*notes, *left.notes("")]


class _Remaining:
    """A mapping from which keys are taken; what is left at the end has no counterpart."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = {key: value for key, value in values.items() if value is not None}  # null is the default there
        self._path = path

    def take(self, key: str, default: Any = None) -> Any:
        return self._values.pop(key, default)

    def has(self, key: str) -> bool:
        """Whether `key` is there, and is not null."""
        return self._values.get(key) is not None

    def rest(self, key: str) -> _Remaining:
        """A nested mapping, to be taken from in turn."""
        nested = self._values.pop(key, None)
        path = f"{self._path}.{key}" if self._path else key
        if nested is not None and not isinstance(nested, dict):
            raise ConfigError(f"ML-Agents setting {path}: give a mapping (got {nested!r:.100})")
        return _Remaining(nested or {}, path)

    def notes(self, prefix: str) -> list[str]:
        """What is left, with the reason."""
        return notes_of(self._values, self._path, prefix)


def _merged(below: Any, above: Any) -> Values:
    result = dict(below or {})
    for key, value in (above or {}).items():
        result[key] = _merged(result[key], value) if isinstance(result.get(key), dict) and value else value
    return result


def _environment(left: _Remaining, result: Values, notes: list[str], *, is_unity: bool) -> Values:
    settings, engine = left.rest("env_settings"), left.rest("engine_settings")
    environment: Values = {"num_envs": count} if (count := settings.take("num_envs")) is not None else {}
    seed = settings.take("seed", -1)
    if seed >= 0:
        result["seed"] = seed
    if (wait_s := settings.take("timeout_wait")) is not None:
        environment["start_timeout_s"] = wait_s
    environment |= _restarts(settings)
    if is_unity:
        environment["options"] = _simulators(settings, engine)
    if (given := left.take("environment_parameters")) is not None:
        environment["parameters"] = _parameters(given, notes)
    torch_settings = left.rest("torch_settings")
    if (device := torch_settings.take("device")) is not None:
        result["device"] = device
    notes += torch_settings.notes("torch_settings.")
    for part, prefix in ((settings, "env_settings."), (engine, "engine_settings.")):
        notes += part.notes(prefix)
    notes += left.rest("checkpoint_settings").notes("checkpoint_settings.")
    return environment


def _restarts(settings: _Remaining) -> Values:
    """Environments that crash begin again there by default; here where the file says how often."""
    lifetime, count = settings.take("max_lifetime_restarts", 10), settings.take("restarts_rate_limit_n", 1)
    period_s = settings.take("restarts_rate_limit_period_s", 60)
    if (int(lifetime), int(count), float(period_s)) == (10, 1, 60.0):
        return {}
    if int(lifetime) == 0 or int(count) == 0:
        return {"on_failure": "raise"}
    per_minute = 1 << 20 if int(count) < 0 else max(1, round(int(count) * 60 / float(period_s)))
    return {"on_failure": "restart", "max_restarts_per_minute": per_minute}


def _simulators(settings: _Remaining, engine: _Remaining) -> Values:
    """Options of a `unity:` environment."""
    named = {"args": "env_args", "base_port": "base_port", "num_areas": "num_areas"}
    options: Values = {ours: own for ours, theirs in named.items() if (own := settings.take(theirs)) is not None}
    if (hides := engine.take("no_graphics")) is not None:
        options["no_graphics"] = hides
    told = {key: own for key in _ENGINE if (own := engine.take(key)) is not None}
    return {**options, "engine": told} if told else options


def _parameters(given: Any, notes: list[str]) -> Any:
    """The same keys, without seeds of samplers; a note of completion criteria that are never asked."""
    if not isinstance(given, dict):
        return given
    for name, own in given.items():
        lessons = own.get("curriculum") if isinstance(own, dict) else None
        if (
            isinstance(lessons, list)
            and lessons
            and isinstance(lessons[-1], dict)
            and lessons[-1].get("completion_criteria")
        ):
            notes.append(
                f"ML-Agents setting environment_parameters.{name}: completion_criteria of its last lesson are not used"
            )
    return _without_seeds(given, "environment_parameters", notes)


def _without_seeds(given: Any, where: str, notes: list[str]) -> Any:
    if isinstance(given, list):
        return [_without_seeds(own, where, notes) for own in given]
    if not isinstance(given, dict):
        return given
    if "sampler_type" in given and isinstance(own := given.get("sampler_parameters"), dict):
        seeds = {key: value for key, value in own.items() if key == "seed"}
        notes += notes_of(seeds, "environment_parameters.sampler_parameters", f"{where}.sampler_parameters.")
        return {**given, "sampler_parameters": {key: value for key, value in own.items() if key != "seed"}}
    return {key: _without_seeds(own, f"{where}.{key}", notes) for key, own in given.items()}


def _behavior(name: str, values: Values, num_envs: int, notes: list[str]) -> Values:
    left = _Remaining(values, "behavior")
    kind = left.take("trainer_type", "ppo")
    if kind not in ("ppo", "sac", "poca"):
        raise UnknownNameError(f"trainer_type of behaviour {name!r}:", str(kind), ("ppo", "sac", "poca"))
    trainer = {key: left.take(key) for key in _TRAINER if values.get(key) is not None}
    if "max_steps" in trainer:
        trainer["max_steps"] = int(
            float(trainer["max_steps"])
        )  # older files write 5.0e5, which YAML takes for a word as 5e5
    if left.take("even_checkpoints"):
        steps, kept = trainer.get("max_steps", 500_000), trainer.get("keep_checkpoints", 5)
        trainer["checkpoint_interval"] = max(1, steps // kept)
    hyper = left.rest("hyperparameters")
    params, signals = _rewards(left, name, notes)
    result: Values = {"algo": kind, "trainer": trainer, "params": params, "network": _network(left, name, notes)}
    if signals:
        result["reward_signals"] = signals
    if left.has("behavioral_cloning"):
        result["behavioral_cloning"] = _cloning(left.rest("behavioral_cloning"), values, name, notes)
    if left.has("self_play"):
        result["self_play"] = _self_play(left.rest("self_play"), name, notes)
    rate = hyper.take("learning_rate", 3e-4)
    schedule = _schedule(hyper, "learning_rate_schedule", name)
    if kind == "sac":
        _sac(hyper, params)
        params |= dict.fromkeys(_RATES, rate)
        if schedule == "linear":
            result["schedules"] = dict.fromkeys(_RATES, linear(rate, 1e-10))
    else:
        if "time_horizon" in trainer:
            notes.append(f"ML-Agents setting {name}.time_horizon is not used: rollouts have buffer_size steps in all")
        _ppo(hyper, result, num_envs)
        result["schedules"] = {
            ours: linear(params[ours], least)
            for key, (ours, least) in _LEAST.items()
            if (_schedule(hyper, key, name) or schedule or "linear") == "linear" and params[ours] > least
        }
        # ML-Agents' own default is linear, and it never stops an update for its KL divergence.
        params |= {"pi_lr": rate, "vf_lr": rate, "lr_schedule": schedule or "linear", "target_kl": None}
    notes += hyper.notes(f"{name}.hyperparameters.") + left.notes(f"{name}.")
    return result


def _schedule(hyper: _Remaining, key: str, name: str) -> str | None:
    schedule: str | None = hyper.take(key)
    if schedule not in (None, "constant", "linear"):
        raise UnknownNameError(f"{key} of behaviour {name!r}:", str(schedule), ("constant", "linear"))
    return schedule


def _ppo(hyper: _Remaining, result: Values, num_envs: int) -> None:
    params, trainer = result["params"], result["trainer"]
    params |= {ours: hyper.take(theirs, default) for theirs, (ours, default) in _PPO.items()}
    result["network"]["shared_encoder"] = hyper.take("shared_critic", False)
    epochs = hyper.take("num_epoch", 3)
    params |= {"train_pi_iters": epochs, "train_vf_iters": epochs}
    buffer, batch = hyper.take("buffer_size", 10_240), hyper.take("batch_size", 1_024)
    # An update there takes `buffer_size` steps of all environments; here it takes `time_horizon` steps of each.
    trainer["time_horizon"] = max(1, buffer // num_envs)
    params["num_minibatches"] = max(1, math.ceil(buffer / batch))


def _sac(hyper: _Remaining, params: Values) -> None:
    params |= {ours: hyper.take(theirs, default) for theirs, (ours, default) in _SAC.items()}
    params["learning_starts"] = max(1, hyper.take("buffer_init_steps", 0))
    per_update = hyper.take("steps_per_update", 1)
    params["update_interval"] = max(1, round(per_update))
    # Replay always travels in checkpoints.
    hyper.take("save_replay_buffer")


def _network(left: _Remaining, name: str, notes: list[str]) -> Values:
    settings = left.rest("network_settings")
    units, layers = settings.take("hidden_units", 128), settings.take("num_layers", 2)
    network: Values = {"hidden_sizes": [units] * layers, "normalize_observations": settings.take("normalize", False)}
    network |= _encoder(settings, units)
    network["memory"] = None
    goals = settings.take("goal_conditioning_type", "hyper")
    if goals not in ("hyper", "none"):
        raise UnknownNameError(f"goal_conditioning_type of behaviour {name!r}:", str(goals), ("hyper", "none"))
    network["goal_conditioning"] = goals
    if settings.has("memory"):
        memory = settings.rest("memory")
        # ML-Agents counts an LSTM's hidden and cell state together.
        size, length = memory.take("memory_size", 128), memory.take("sequence_length", 64)
        network["memory"] = {"kind": "lstm", "size": max(1, size // 2), "sequence_length": length}
        notes += memory.notes(f"{name}.network_settings.memory.")
    notes += settings.notes(f"{name}.network_settings.")
    return network


def _encoder(settings: _Remaining, units: int) -> Values:
    encoder = settings.take("vis_encode_type", "simple")
    if encoder == "fully_connected":
        return {"image_layout": "flat"}
    if encoder not in _ENCODERS:
        raise UnknownNameError("vis_encode_type", str(encoder), (*_ENCODERS, "fully_connected"))
    return {"encoder": encoder, "encoder_size": units}


def _rewards(left: _Remaining, name: str, notes: list[str]) -> tuple[Values, Values]:
    """The discount, and the reward signals."""
    lists_any, signals = left.has("reward_signals"), left.rest("reward_signals")
    # There, a list without the environment's reward leaves it out.
    default = 0.0 if lists_any and not signals.has("extrinsic") else 1.0
    extrinsic = signals.rest("extrinsic")
    gamma, strength = extrinsic.take("gamma", 0.99), extrinsic.take("strength", default)
    result: Values = {} if strength == 1.0 else {"extrinsic": {"strength": strength}}
    notes += extrinsic.notes(f"{name}.reward_signals.extrinsic.")
    for signal in SIGNALS:
        if signals.has(signal):
            result[signal] = _signal(signals.rest(signal), f"{name}.reward_signals.{signal}.", notes)
    notes += signals.notes(f"{name}.reward_signals.")
    return {"gamma": gamma}, result


def _self_play(left: _Remaining, name: str, notes: list[str]) -> Values:
    """The keys are ours; steps are counted there by the agents of a team, here by environments."""
    result = {key: left.take(key) for key in _SELF_PLAY if left.has(key)}
    notes += left.notes(f"{name}.self_play.")
    return result


def _signal(left: _Remaining, where: str, notes: list[str]) -> Values:
    result: Values = {key: number for key in ("strength", "gamma") if (number := left.take(key)) is not None}
    options: Values = {} if (rate := left.take("learning_rate")) is None else {"learning_rate": rate}
    size = left.take("encoding_size")
    if not left.has("network_settings") and size is not None:
        options["network"] = {"hidden_sizes": [size] * 2}
    if left.has("network_settings"):
        settings = left.rest("network_settings")
        units, layers = settings.take("hidden_units", 128), settings.take("num_layers", 2)
        options["network"] = {"hidden_sizes": [units] * layers} | _encoder(settings, units)
        notes += settings.notes(f"{where}network_settings.")
    options |= {key: given for key in _GAIL if (given := left.take(key)) is not None}
    notes += left.notes(where)
    return {**result, "options": options}


def _cloning(left: _Remaining, behavior: Values, name: str, notes: list[str]) -> Values:
    """Keys are the same there. What is left out is the algorithm's own there: the size of minibatches and the passes."""
    hyper = behavior.get("hyperparameters") or {}
    defaults = {"batch_size": hyper.get("batch_size", 1_024), "num_epoch": hyper.get("num_epoch", 3)}
    result = defaults | {key: given for key in _CLONING if (given := left.take(key)) is not None}
    notes += left.notes(f"{name}.behavioral_cloning.")
    return result


def _add_override(result: Values, name: str, mapped: Values, notes: list[str]) -> None:
    if mapped["algo"] != result["algo"]:
        raise ConfigError(
            f"behaviour {name!r} has trainer_type {mapped['algo']}, the first one {result['algo']}; train them in runs of "
            "their own"
        )
    override = {
        part: {key: value for key, value in mapped[part].items() if result[part].get(key) != value}
        for part in ("network", "params")
    }
    override = {part: own for part, own in override.items() if own}
    if override:
        result.setdefault("behaviors", {})[name] = override
    for key, value in mapped.get("schedules", {}).items():
        if result.get("schedules", {}).get(key) != value:
            result["schedules"] = {**result.get("schedules", {}), f"{name}.{key}": value}
    for key in result.get("schedules", {}).keys() - mapped.get("schedules", {}).keys():
        if "." not in key:
            own = mapped["params"][key]
            result["schedules"][f"{name}.{key}"] = linear(own, own)
    other = [key for key in ("reward_signals", "behavioral_cloning", "self_play") if mapped.get(key) != result.get(key)]
    other += [key for key, value in mapped["trainer"].items() if result["trainer"].get(key) != value]
    notes += [
        f"ML-Agents setting {name}.{key} is ignored: all behaviours of a run share the first one's" for key in other
    ]
