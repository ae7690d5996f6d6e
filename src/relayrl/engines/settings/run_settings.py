"""Everything that decides a run, in one object, and how it comes about: flag > file > preset > default."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import Field, SerializeAsAny, field_serializer, field_validator, model_validator

from relayrl.algorithms.registry import algorithms
from relayrl.config.passwords import without_password
from relayrl.config.plugin_registry import current_env
from relayrl.config.settings import Settings, parse_settings, settings_class
from relayrl.config.settings_text import parse_assignment, read_mapping
from relayrl.engines.plugins import LOCAL_ENGINE, algorithm_entry, require_engine
from relayrl.engines.settings.cluster_settings import ClusterSettings
from relayrl.engines.settings.mlagents_settings import from_mlagents, is_mlagents
from relayrl.engines.settings.self_play_settings import SelfPlaySettings
from relayrl.envs.environment_settings import EnvSettings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.models.network_settings import NetworkSettings
from relayrl.training.imitation.imitation_settings import BehavioralCloningSettings
from relayrl.training.signals.signal_registry import SIGNALS, parse_options
from relayrl.training.signals.signal_settings import EXTRINSIC, RewardSignalSettings
from relayrl.training.trainer_settings import EvaluationSettings, StatisticsSettings, TrainerSettings

_DEVICE = re.compile(r"auto|cpu(:0)?|cuda(:\d+)?")


class BehaviorSettings(Settings):
    """What one policy group has different from the run."""

    network: dict[str, Any] = Field(default_factory=dict, description="settings of `network` that this group overrides")
    params: dict[str, Any] = Field(default_factory=dict, description="settings of `params` that this group overrides")


class RunSettings(Settings):
    """One run. The same settings, seed and machine give the same parameters, bit for bit."""

    env: str = Field(description="environment, as `relayrl list envs` names them")
    algo: str = Field("ppo", description="algorithm, as `relayrl list algos` names them")
    seed: int = Field(0, ge=0, le=(1 << 63) - 1, description="all randomness of the run comes from it")
    engine: str = Field(
        LOCAL_ENGINE,
        description="local: everything in this process, environments also in workers; ray: environments on a Ray cluster, "
        "with `environment.workers` collectors; or a plugin",
    )
    device: str = Field(
        "cpu",
        description="where networks act and learn: cpu, cuda, cuda:N, or auto (the faster one, measured before the run); "
        "native environments go there too (cpu:0: torch on the CPU), others stay on the host",
    )
    deterministic: bool = Field(
        True,
        description="on a GPU: convolutions and recurrent cells that give the same numbers every time; false: faster",
    )
    tf32: bool = Field(
        False, description="on a GPU: round what is multiplied to 10 bits of mantissa; several times faster, less exact"
    )
    threads: int = Field(
        1,
        ge=0,
        le=1024,
        description="threads of torch and BLAS; small networks are fastest with one; 0: measured before the run",
    )
    learners: int = Field(
        1,
        ge=1,
        le=256,
        description="processes that take each gradient step of an on-policy algorithm together, with `threads` each",
    )
    environment: EnvSettings = Field(default_factory=EnvSettings, description="how the environments are run")
    cluster: ClusterSettings = Field(default_factory=ClusterSettings, description="the engine `ray`")
    params: SerializeAsAny[Settings] = Field(description="the algorithm's hyper-parameters")
    environment_parameters: dict[str, Any] = Field(
        default_factory=dict,
        exclude=True,
        description="what episodes begin with, by name: a number, a sampler, or a curriculum; kept as environment.parameters",
    )
    network: NetworkSettings = Field(default_factory=NetworkSettings, description="the policy's networks")
    trainer: TrainerSettings = Field(default_factory=TrainerSettings, description="the schedule")
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings, description="episodes without learning, during the run and at its end"
    )
    statistics: StatisticsSettings = Field(default_factory=StatisticsSettings, description="where statistics go")
    loss: str | None = Field(
        None, description="policy loss of on-policy algorithms instead of theirs: a plugin's name, or `module:name`"
    )
    schedules: dict[str, str] = Field(
        default_factory=dict,
        description="hyper-parameters that move while the run goes on, by their names: functions of the share of the run that "
        "is over, as plugins' names, `module:name` or `linear(FIRST, LAST)`; `GROUP.NAME` is that of one policy group",
    )
    reward_signals: dict[str, RewardSignalSettings] = Field(
        default_factory=dict,
        description="what is added to the rewards, by name: extrinsic (the environment's own), rnd, curiosity, or a plugin",
    )
    self_play: SelfPlaySettings | None = Field(
        None, description="learn against snapshots of the run's own policies; null: all agents learn beside each other"
    )
    behavioral_cloning: BehavioralCloningSettings | None = Field(
        None, description="clone demonstrations after every update, for ppo, poca, sac and others with likelihoods"
    )
    behaviors: dict[str, BehaviorSettings] = Field(
        default_factory=dict, description="overrides for single policy groups, by their name"
    )

    record: str | None = Field(
        None, repr=False, description="URL of a sink that keeps every trajectory the run collects"
    )
    learn_from: str | None = Field(
        None, repr=False, description="URL of recorded trajectories; nothing is collected then"
    )

    @field_serializer("record", "learn_from", when_used="json")
    def _hide_password(self, url: str | None) -> str | None:
        """What is stored, compared and shown has no password."""
        return None if url is None else without_password(url)

    @field_validator("env")
    @classmethod
    def _call_by_its_present_name(cls, env: str) -> str:
        return current_env(env)

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device) and not is_registered_backend(device):
            raise ConfigError(f"setting 'device' is {device!r:.50}; give auto, cpu, cuda or cuda:N")
        return device

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, engine: str) -> str:
        require_engine(engine)
        return engine

    @property
    def acts_with_older_policies(self) -> bool:
        """Whether a newer policy learns from steps than the one that acted, so that rows hold what it thought of them."""
        return self.trainer.threaded or self.keeps_own_pace

    @property
    def keeps_own_pace(self) -> bool:
        """Whether environments do not wait for each other between rollouts."""
        return self.engine != LOCAL_ENGINE and self.cluster.asynchronous

    @property
    def environment_here(self) -> EnvSettings:
        """How environments of this process are run; `workers` are the engine's, which may place them elsewhere."""
        is_local = self.engine == LOCAL_ENGINE
        return self.environment if is_local else self.environment.model_copy(update={"workers": 0})

    def here(self) -> RunSettings:
        """The same run with everything in this process, to look at it or to try it."""
        return self.model_copy(update={"engine": LOCAL_ENGINE, "environment": self.environment_here})

    @model_validator(mode="before")
    @classmethod
    def _choose_params(cls, values: Any) -> Any:
        if isinstance(values, dict) and not isinstance(values.get("params"), Settings):
            algo, given = values.get("algo", "ppo"), values.get("params") or {}
            if not isinstance(algo, str):
                raise ConfigError(f"setting 'algo': give the name of one algorithm (got {algo!r:.200})")
            if not isinstance(given, dict):
                raise ConfigError(f"setting 'params': give a mapping of hyper-parameters (got {given!r:.200})")
            values = {**values, "params": parse_settings(algorithm_entry(algo).params, given)}
        return values

    @model_validator(mode="before")
    @classmethod
    def _keep_parameters_with_environment(cls, values: Any) -> Any:
        """ML-Agents' key at the top of a file is the environments' own."""
        given = values.get("environment_parameters") if isinstance(values, dict) else None
        environment = values.get("environment") or {} if isinstance(values, dict) else None
        if not given or not isinstance(given, Mapping) or not isinstance(environment, Mapping):
            return values
        parameters = {**(environment.get("parameters") or {}), **given}
        return {**values, "environment_parameters": {}, "environment": {**environment, "parameters": parameters}}

    @model_validator(mode="after")
    def _check_exclusive(self) -> RunSettings:
        if self.environment.exclusive and self.trainer.threaded and self.evaluation.interval is not None:
            raise ValueError(
                "environment.exclusive lends the training environments to evaluations, which trainer.threaded collects in; "
                "set one of them to false, or evaluation.interval to null"
            )
        return self

    @model_validator(mode="after")
    def _check_behaviors(self) -> RunSettings:
        for group in self.behaviors:
            self.network_of(group)
            self.params_of(group)
        return self

    @model_validator(mode="after")
    def _check_signals(self) -> RunSettings:
        """Signals are added to the reward of one value function, which has one discount."""
        discounts = {self.params_of(group).model_dump().get("gamma") for group in ("", *self.behaviors)}
        for name, signal in self.reward_signals.items():
            if name == EXTRINSIC and signal.options:
                raise ConfigError("reward_signals.extrinsic is the environment's own reward and takes no options")
            if name in SIGNALS:
                parse_options(name, signal.options)
            odd = discounts - {signal.gamma, None}
            if signal.gamma is not None and odd:
                raise ConfigError(
                    f"reward_signals.{name}.gamma is {signal.gamma} and params.gamma {odd.pop()}: signals are added to the "
                    "reward before one value function, which has one discount; leave the signal's out, or set both alike"
                )
        if self.learn_from is not None and self.reward_signals:
            raise ConfigError(
                "recorded trajectories are learned from with the rewards they have; leave out reward_signals"
            )
        return self

    @model_validator(mode="after")
    def _check_self_play(self) -> RunSettings:
        if self.self_play is None:
            return self
        if self.learn_from is not None:
            raise ConfigError("recorded trajectories are learned from without playing; leave out self_play")
        entries = algorithms()
        if self.algo in entries and entries[self.algo].is_central:
            raise ConfigError(
                f"critics of {self.algo} see all agents, of which self_play shows the learner's alone; use ppo, sac or poca"
            )
        return self

    def network_of(self, group: str) -> NetworkSettings:
        """The networks of one policy group."""
        overrides = self.behaviors[group].network if group in self.behaviors else {}
        return _overridden(self.network, overrides, f"behaviors.{group}.network")

    def params_of(self, group: str) -> Settings:
        """The hyper-parameters of one policy group."""
        overrides = self.behaviors[group].params if group in self.behaviors else {}
        return _overridden(self.params, overrides, f"behaviors.{group}.params")

    def to_yaml(self) -> str:
        """The whole run as YAML that `--config` takes."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def is_registered_backend(device: str) -> bool:
    """Whether a device is one that some other package has registered with torch, which that package has loaded then."""
    torch: Any = sys.modules.get("torch")
    name = "privateuseone" if torch is None else torch._C._get_privateuse1_backend_name()
    return name != "privateuseone" and device.partition(":")[0] == name


S = TypeVar("S", bound=Settings)
Assignment = str | tuple[str, Any]


def _overridden(settings: S, overrides: Mapping[str, Any], where: str) -> S:
    if not overrides:
        return settings
    try:
        return parse_settings(type(settings), merged(settings.model_dump(), overrides))
    except ConfigError as error:
        raise ConfigError(f"in {where}: {error}") from error


def build_run_settings(
    env: str | None,
    file: Path | None,
    flags: Mapping[str, Any],
    assignments: Sequence[Assignment],
    notes: list[str] | None = None,
    generic: Callable[[RunSettings], Mapping[str, Any]] | None = None,
    *,
    is_whole: bool = False,
    overlay: Mapping[str, Any] = MappingProxyType({}),
) -> RunSettings:
    """Merge what the user gave. `flags` are dotted paths that were set explicitly; `assignments` are `key=value`
    or pairs of both; a key's last name alone is enough where it is unambiguous.

    What a file of Unity ML-Agents says that has no counterpart here is added to `notes`. Such a file has defaults of its own.
    Without it and without a preset, `generic` gives one for what the settings would be otherwise. A file that is whole
    (`is_whole`), as that of a run is, gets nothing that depends on the environment's name. `overlay` goes over the file as if
    it stood there.
    """
    from_file = merged(read_mapping(file) if file is not None else {}, overlay)
    has_defaults = is_mlagents(from_file)
    if has_defaults:
        from_file, ignored = from_mlagents(from_file, env)
        (notes if notes is not None else []).extend(ignored)
    name = env or from_file.get("env")
    if name is None:
        raise ConfigError("no environment given; name one, for example: relayrl train CartPole-v1")
    algo = flags.get("algo") or from_file.get("algo") or "ppo"
    known = list(_known_paths(parse_settings(RunSettings, {"env": name, "algo": algo})))
    changes = list(flags.items())
    for assignment in assignments:
        key, value = given_pair(assignment)
        changes.append((_resolve(key, known), value))

    usual = usual_environment(name) if isinstance(name, str) and (has_defaults or not is_whole) else {}

    def laid_over(base: Mapping[str, Any]) -> RunSettings:
        values = merged({"environment": usual}, base, from_file, {"env": name, "algo": algo})
        for path, value in changes:
            _assign(values, path.split("."), value)
        return parse_settings(RunSettings, values)

    shipped = preset(name, algo) if isinstance(name, str) and isinstance(algo, str) else {}
    settings = laid_over(shipped)
    if shipped or has_defaults or generic is None:
        return settings
    return laid_over(generic(settings))


def assigned(assignments: Sequence[Assignment], key: str) -> list[Any]:
    """The values that assignments give to a key of the top level."""
    pairs = [given_pair(each) for each in assignments]
    return [value for name, value in pairs if name == key]


def given_pair(assignment: Assignment) -> tuple[str, Any]:
    """The key and the value of an assignment."""
    return parse_assignment(assignment, "--set") if isinstance(assignment, str) else assignment


def preset(env: str, algo: str) -> dict[str, Any]:
    """Settings shipped for an environment and algorithm, by its name or by a pattern; empty where there are none."""
    file = _preset_folder() / f"{algo}.yaml"
    return _fitting(_read_presets(file), current_env(env)) if file.is_file() else {}


def usual_environment(env: str) -> dict[str, Any]:
    """Settings of an environment that suit every algorithm, such as wrappers without which nobody learns it."""
    return _fitting(_read_presets(resources.files("relayrl.engines.settings") / "usual_environments.yaml"), env)


def _fitting(found: Mapping[str, dict[str, Any]], env: str) -> dict[str, Any]:
    """The values under an environment's name, else those under a pattern that fits it."""
    patterns = (values for pattern, values in found.items() if fnmatch.fnmatchcase(env, pattern))
    return found[env] if env in found else next(patterns, {})


def presets() -> dict[tuple[str, str], dict[str, Any]]:
    """All shipped presets by environment and algorithm."""
    files = sorted(_preset_folder().iterdir(), key=lambda file: file.name)
    return {
        (env, file.name.removesuffix(".yaml")): values for file in files for env, values in _read_presets(file).items()
    }


def _preset_folder() -> Traversable:
    return resources.files("relayrl.engines.settings") / "presets"


def _read_presets(file: Traversable) -> dict[str, dict[str, Any]]:
    # libyaml is ten times as fast, and in PyYAML's wheels; other builds may come without.
    found: dict[str, dict[str, Any]] = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings laid over each other, later ones on top."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return result


def _assign(values: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        values[part] = dict(values.get(part) or {})
        values = values[part]
    values[path[-1]] = value


def _known_paths(settings: Settings, prefix: str = "") -> Iterator[str]:
    for key, field in type(settings).model_fields.items():
        yield f"{prefix}{key}"
        value, optional = getattr(settings, key), settings_class(field.annotation)
        if isinstance(value, Settings):
            yield from _known_paths(value, f"{prefix}{key}.")
        elif value is None and optional is not None:
            yield from (f"{prefix}{key}.{name}" for name in optional.model_fields)


def _resolve(key: str, paths: list[str]) -> str:
    """The full path of a key given in full or by its last name alone."""
    free = ("environment_parameters.", "environment.parameters.")
    if key in paths or key.startswith(("environment.options.", *free, "reward_signals.", "behaviors.", "schedules.")):
        return key
    # Keys of cloning are given in full: `batch_size` has always been the algorithm's.
    matches = [path for path in paths if path.rsplit(".", 1)[-1] == key and not path.startswith("behavioral_cloning.")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"setting {key!r} is ambiguous; write {' or '.join(matches)}")
    raise UnknownNameError("setting", key, [*paths, *(path.rsplit(".", 1)[-1] for path in paths)])
