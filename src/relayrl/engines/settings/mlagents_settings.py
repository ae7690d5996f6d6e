"""Reading a Unity ML-Agents trainer file (`behaviors:` with PPO or SAC keys) as settings of a run.

    behaviors:
      Walker:
        trainer_type: ppo
        hyperparameters: {batch_size: 64, buffer_size: 1024, learning_rate: 3.0e-4, beta: 0.01, epsilon: 0.2, …}
        network_settings: {hidden_units: 128, num_layers: 2, normalize: true, memory: {memory_size: 128, sequence_length: 64}}
        reward_signals: {extrinsic: {gamma: 0.99, strength: 1.0}}
        max_steps: 500000

The first behaviour describes the run; what others have different becomes overrides for the group of that name. The environment
is not in such a file: name it on the command line. Keys without a counterpart are listed, never dropped in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.network_settings import EncoderKind
from relayrl.training.signals.signal_registry import SIGNALS

Values = dict[str, Any]
_SCHEDULES = ("trainer_type", "hyperparameters", "network_settings", "reward_signals", "init_path", "self_play")
_TRAINER = ("max_steps", "summary_freq", "checkpoint_interval", "keep_checkpoints", "threaded", "time_horizon")
_ENCODERS = tuple(kind.value for kind in EncoderKind)
"""Called the same there; match3 and fully_connected have no counterpart."""
_GAIL = ("demo_path", "use_actions", "use_vail")
_CLONING = ("demo_path", "strength", "steps", "batch_size", "num_epoch", "samples_per_update")
_PPO = {"beta": "entropy_coef", "epsilon": "clip_ratio", "lambd": "lam"}
_SAC = {
    "batch_size": "batch_size",
    "buffer_size": "buffer_size",
    "buffer_init_steps": "learning_starts",
    "tau": "tau",
    "init_entcoef": "init_temperature",
}


def is_mlagents(values: Mapping[str, Any]) -> bool:
    """Whether a settings file is one of ML-Agents."""
    behaviors = values.get("behaviors") or {}
    return "default_settings" in values or (
        isinstance(behaviors, dict)
        and any(isinstance(b, dict) and not b.keys().isdisjoint(_SCHEDULES) for b in behaviors.values())
    )


def from_mlagents(values: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Settings of a run, and one line for everything that was left out or read differently."""
    left = _Remaining(values)
    default = left.take("default_settings", {})
    behaviors = left.take("behaviors", {}) or {}
    result: Values = {}
    environment = _environment(left, result)
    num_envs = environment.get("num_envs", EnvSettings().num_envs)
    notes: list[str] = []
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

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def take(self, key: str, default: Any = None) -> Any:
        return self._values.pop(key, default)

    def has(self, key: str) -> bool:
        """Whether `key` is there, and is not null."""
        return self._values.get(key) is not None

    def rest(self, key: str) -> _Remaining:
        """A nested mapping, to be taken from in turn."""
        nested = self._values.pop(key, None)
        return _Remaining(nested if isinstance(nested, dict) else {})

    def put(self, key: str, value: Any) -> None:
        """Say that `key` was not used after all."""
        self._values[key] = value

    def move_to(self, other: _Remaining, prefix: str) -> None:
        """Leave the rest to `other`."""
        for key, value in self._values.items():
            other.put(prefix + key, value)

    def notes(self, prefix: str) -> list[str]:
        unused = (key for key, value in self._values.items() if value is not None)
        return [f"ML-Agents setting {prefix}{key} has no counterpart and is ignored" for key in unused]


def _merged(below: Any, above: Any) -> Values:
    result = dict(below or {})
    for key, value in (above or {}).items():
        result[key] = _merged(result[key], value) if isinstance(result.get(key), dict) and value else value
    return result


def _environment(left: _Remaining, result: Values) -> Values:
    settings = left.rest("env_settings")
    environment = {"num_envs": count} if (count := settings.take("num_envs")) is not None else {}
    seed = settings.take("seed", -1)
    if seed >= 0:
        result["seed"] = seed
    settings.move_to(left, "env_settings.")
    return environment


def _behavior(name: str, values: Values, num_envs: int, notes: list[str]) -> Values:
    left = _Remaining(values)
    kind = left.take("trainer_type", "ppo")
    if kind not in ("ppo", "sac", "poca"):
        raise UnknownNameError(f"trainer_type of behaviour {name!r}:", str(kind), ("ppo", "sac", "poca"))
    trainer = {key: left.take(key) for key in _TRAINER if key in values}
    hyper = left.rest("hyperparameters")
    params, signals = _rewards(left, name, notes)
    result: Values = {"algo": kind, "trainer": trainer, "params": params, "network": _network(left, name, notes)}
    if signals:
        result["reward_signals"] = signals
    if left.has("behavioral_cloning"):
        result["behavioral_cloning"] = _cloning(left.rest("behavioral_cloning"), values, name, notes)
    rate = hyper.take("learning_rate")
    schedule = hyper.take("learning_rate_schedule")
    if kind == "sac":
        _sac(hyper, params)
        params |= {} if rate is None else {"actor_lr": rate, "critic_lr": rate, "temperature_lr": rate}
        if schedule not in (None, "constant"):
            notes.append(f"ML-Agents setting {name}.hyperparameters.learning_rate_schedule: sac's rate is constant")
    else:
        if "time_horizon" in trainer:
            notes.append(f"ML-Agents setting {name}.time_horizon is not used: rollouts have buffer_size steps in all")
        _ppo(hyper, result, num_envs)
        params |= {} if rate is None else {"pi_lr": rate, "vf_lr": rate}
        # ML-Agents' own default is linear, and it never stops an update for its KL divergence.
        params |= {"lr_schedule": schedule or "linear", "target_kl": None}
    notes += hyper.notes(f"{name}.hyperparameters.") + left.notes(f"{name}.")
    return result


def _ppo(hyper: _Remaining, result: Values, num_envs: int) -> None:
    params, trainer = result["params"], result["trainer"]
    params |= {ours: number for theirs, ours in _PPO.items() if (number := hyper.take(theirs)) is not None}
    epochs = hyper.take("num_epoch", 3)
    params |= {"train_pi_iters": epochs, "train_vf_iters": epochs}
    buffer, batch = hyper.take("buffer_size", 10_240), hyper.take("batch_size", 1_024)
    # An update there takes `buffer_size` steps of all environments; here it takes `time_horizon` steps of each.
    trainer["time_horizon"] = max(1, buffer // num_envs)
    params["num_minibatches"] = max(1, math.ceil(buffer / batch))
    for key in ("beta_schedule", "epsilon_schedule"):
        if hyper.take(key, "constant") != "constant":
            hyper.put(key, "not constant")


def _sac(hyper: _Remaining, params: Values) -> None:
    params |= {ours: number for theirs, ours in _SAC.items() if (number := hyper.take(theirs)) is not None}
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
    if settings.has("memory"):
        memory = settings.rest("memory")
        # ML-Agents counts an LSTM's hidden and cell state together.
        size, length = memory.take("memory_size", 128), memory.take("sequence_length", 64)
        network["memory"] = {"kind": "lstm", "size": max(1, size // 2), "sequence_length": length}
        notes += memory.notes(f"{name}.network_settings.memory.")
    notes += settings.notes(f"{name}.network_settings.")
    return network


def _encoder(settings: _Remaining, units: int) -> Values:
    encoder = settings.take("vis_encode_type")
    if encoder in _ENCODERS:
        return {"encoder": encoder, "encoder_size": units}
    settings.put("vis_encode_type", encoder)
    return {}


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


def _signal(left: _Remaining, where: str, notes: list[str]) -> Values:
    result: Values = {key: number for key in ("strength", "gamma") if (number := left.take(key)) is not None}
    options: Values = {} if (rate := left.take("learning_rate")) is None else {"learning_rate": rate}
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
    shared = [part for part in ("reward_signals", "behavioral_cloning") if mapped.get(part) != result.get(part)]
    shared += [key for key, value in mapped["trainer"].items() if result["trainer"].get(key) != value]
    notes += [
        f"ML-Agents setting {name}.{key} is ignored: all behaviours of a run share the first one's" for key in shared
    ]
