"""Every key of a settings file of Unity ML-Agents, with its default there and what becomes of it here.

The reader (`mlagents_settings`) looks here for what it did not use: a key that is not listed is misspelt, one that would change
what is learned is refused, all others are noted with their reason where they are not at their default. The table of the docs is
made of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from relayrl.errors import ConfigError, UnknownNameError


class Status(Enum):
    """What becomes of a key."""

    WORKS = "works"
    LEARN = "`relayrl learn`"
    UNITY = "Unity alone"
    NOTED = "noted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """One key: `here` says in the docs what it is, and in a note why it has no effect."""

    path: str
    default: Any
    status: Status
    here: str


_W, _L, _U, _N, _R = Status.WORKS, Status.LEARN, Status.UNITY, Status.NOTED, Status.REFUSED
_ENGINE = "`environment.options.engine` of a `unity:` environment; others have no engine"

KEYS: dict[str, KeyRule] = {
    path: KeyRule(path, default, status, here)
    for path, default, status, here in (
        ("default_settings", None, _W, "defaults of every behaviour"),
        (
            "behaviors",
            None,
            _W,
            "the first describes the run; what others have different is `behaviors` of their groups",
        ),
        ("behavior.trainer_type", "ppo", _W, "`algo`: `ppo`, `sac` or `poca`, the same for all behaviours"),
        ("behavior.max_steps", 500_000, _W, "`trainer.max_steps`"),
        (
            "behavior.time_horizon",
            64,
            _W,
            "`trainer.time_horizon` of SAC; rollouts of PPO and POCA have `buffer_size` steps",
        ),
        ("behavior.summary_freq", 50_000, _W, "`trainer.summary_freq`; not given: a hundredth of `max_steps`"),
        ("behavior.checkpoint_interval", 500_000, _W, "`trainer.checkpoint_interval`"),
        ("behavior.keep_checkpoints", 5, _W, "`trainer.keep_checkpoints`"),
        ("behavior.even_checkpoints", False, _W, "`trainer.checkpoint_interval` = `max_steps` / `keep_checkpoints`"),
        ("behavior.threaded", False, _W, "`trainer.threaded`"),
        (
            "behavior.init_path",
            None,
            _L,
            "`--init-from`: a run directory or a `.ckpt` file, the same for all behaviours",
        ),
        ("behavior.framework", None, _N, "there is one framework, torch"),
        (
            "behavior.hyperparameters.batch_size",
            None,
            _W,
            "PPO, POCA: `num_minibatches` = `buffer_size` / it; SAC: `batch_size`",
        ),
        (
            "behavior.hyperparameters.buffer_size",
            None,
            _W,
            "PPO, POCA: `time_horizon` = it / `num_envs`; SAC: `buffer_size`",
        ),
        (
            "behavior.hyperparameters.learning_rate",
            3e-4,
            _W,
            "`pi_lr` and `vf_lr`; `actor_lr`, `critic_lr` and `temperature_lr`",
        ),
        (
            "behavior.hyperparameters.learning_rate_schedule",
            None,
            _W,
            "PPO, POCA: `lr_schedule`, linear by default; SAC: `schedules` of its three rates, constant by default",
        ),
        ("behavior.hyperparameters.beta", 5e-3, _W, "`entropy_coef`"),
        (
            "behavior.hyperparameters.beta_schedule",
            None,
            _W,
            "`schedules.entropy_coef`: linear to 0.00001; not given: as `learning_rate_schedule`",
        ),
        ("behavior.hyperparameters.epsilon", 0.2, _W, "`clip_ratio`"),
        (
            "behavior.hyperparameters.epsilon_schedule",
            None,
            _W,
            "`schedules.clip_ratio`: linear to 0.1; not given: as `learning_rate_schedule`",
        ),
        ("behavior.hyperparameters.lambd", 0.95, _W, "`lam`"),
        ("behavior.hyperparameters.num_epoch", 3, _W, "`train_pi_iters` and `train_vf_iters`"),
        (
            "behavior.hyperparameters.shared_critic",
            False,
            _W,
            "`network.shared_encoder`: encoders of images; MLPs are never shared",
        ),
        ("behavior.hyperparameters.buffer_init_steps", 0, _W, "`learning_starts`, at least 1"),
        ("behavior.hyperparameters.tau", 0.005, _W, "`tau`"),
        ("behavior.hyperparameters.steps_per_update", 1, _W, "`update_interval`, rounded"),
        ("behavior.hyperparameters.init_entcoef", 1.0, _W, "`init_temperature`"),
        ("behavior.hyperparameters.save_replay_buffer", False, _W, "checkpoints always hold the replay"),
        (
            "behavior.hyperparameters.reward_signal_steps_per_update",
            None,
            _N,
            "reward signals learn from every rollout",
        ),
        ("behavior.network_settings.normalize", False, _W, "`network.normalize_observations`"),
        ("behavior.network_settings.hidden_units", 128, _W, "`network.hidden_sizes`, `network.encoder_size`"),
        ("behavior.network_settings.num_layers", 2, _W, "`network.hidden_sizes`"),
        (
            "behavior.network_settings.vis_encode_type",
            "simple",
            _W,
            "`network.encoder`: `simple`, `nature_cnn`, `resnet`, `match3`; `fully_connected` is `image_layout: flat`",
        ),
        (
            "behavior.network_settings.goal_conditioning_type",
            "hyper",
            _W,
            "`network.goal_conditioning`: goal sensors of Unity scenes; `hyper` beside images is refused",
        ),
        (
            "behavior.network_settings.deterministic",
            False,
            _L,
            "`--inference` plays the most likely actions; training always draws, evaluations never",
        ),
        (
            "behavior.network_settings.memory.memory_size",
            128,
            _W,
            "`network.memory.size` = half of it, an LSTM's states",
        ),
        ("behavior.network_settings.memory.sequence_length", 64, _W, "`network.memory.sequence_length`"),
        ("behavior.reward_signals.extrinsic.gamma", 0.99, _W, "`gamma`"),
        (
            "behavior.reward_signals.extrinsic.strength",
            1.0,
            _W,
            "`reward_signals.extrinsic.strength`; 0 where not listed",
        ),
        (
            "behavior.reward_signals.extrinsic.network_settings",
            None,
            _N,
            "the environment's reward has no network",
        ),
        *(
            (f"behavior.reward_signals.{signal}.{key}", default, status, here)
            for signal in ("curiosity", "rnd", "gail")
            for key, default, status, here in (
                ("strength", 1.0, _W, "the same"),
                ("gamma", 0.99, _W, "the same; one that is not `extrinsic`'s is refused"),
                ("learning_rate", None, _W, "`options.learning_rate`"),
                ("encoding_size", None, _W, "`options.network.hidden_sizes`, where `network_settings` is not given"),
                ("network_settings.hidden_units", 128, _W, "`options.network.hidden_sizes`, `encoder_size`"),
                ("network_settings.num_layers", 2, _W, "`options.network.hidden_sizes`"),
                ("network_settings.vis_encode_type", "simple", _W, "`options.network.encoder`"),
                ("network_settings.normalize", False, _N, "signals normalise what they need themselves"),
                ("network_settings.memory", None, _N, "networks of signals have no memory"),
                (
                    "network_settings.goal_conditioning_type",
                    "hyper",
                    _N,
                    "networks of signals see goals as everything else",
                ),
                ("network_settings.deterministic", False, _N, "signals do not act"),
            )
        ),
        ("behavior.reward_signals.gail.demo_path", None, _W, "`options.demo_path`"),
        ("behavior.reward_signals.gail.use_actions", False, _W, "`options.use_actions`"),
        ("behavior.reward_signals.gail.use_vail", False, _W, "`options.use_vail`"),
        ("behavior.behavioral_cloning.demo_path", None, _W, "`behavioral_cloning.demo_path`"),
        ("behavior.behavioral_cloning.strength", 1.0, _W, "`behavioral_cloning.strength`"),
        ("behavior.behavioral_cloning.steps", 0, _W, "`behavioral_cloning.steps`"),
        (
            "behavior.behavioral_cloning.batch_size",
            None,
            _W,
            "`behavioral_cloning.batch_size`; not given: the algorithm's",
        ),
        (
            "behavior.behavioral_cloning.num_epoch",
            None,
            _W,
            "`behavioral_cloning.num_epoch`; not given: the algorithm's",
        ),
        ("behavior.behavioral_cloning.samples_per_update", 0, _W, "`behavioral_cloning.samples_per_update`"),
        ("behavior.self_play.save_steps", 20_000, _W, "`self_play.save_steps`, of environments"),
        ("behavior.self_play.team_change", None, _W, "`self_play.team_change`; not given: five times `save_steps`"),
        ("behavior.self_play.swap_steps", 2_000, _W, "`self_play.swap_steps`, of environments"),
        ("behavior.self_play.window", 10, _W, "`self_play.window`"),
        ("behavior.self_play.play_against_latest_model_ratio", 0.5, _W, "the same in `self_play`"),
        ("behavior.self_play.initial_elo", 1_200.0, _W, "`self_play.initial_elo`"),
        ("environment_parameters", None, _W, "`environment_parameters`: numbers, samplers and curricula"),
        ("environment_parameters.sampler_parameters.seed", -1, _N, "draws come from the run's seed"),
        ("checkpoint_settings.run_id", "ppo", _L, "`--run-dir results/RUN_ID`"),
        ("checkpoint_settings.results_dir", "results", _L, "the folder of `--run-dir`"),
        ("checkpoint_settings.initialize_from", None, _L, "`--init-from results/ID`"),
        ("checkpoint_settings.resume", False, _L, "`--resume`"),
        ("checkpoint_settings.load_model", False, _L, "an older name of `resume`"),
        ("checkpoint_settings.force", False, _L, "replaces the run of that id"),
        (
            "checkpoint_settings.inference",
            False,
            _L,
            "plays episodes with the run's policies, as `relayrl evaluate` does",
        ),
        ("checkpoint_settings.train_model", False, _N, "runs train unless `inference` is set"),
        ("env_settings.env_path", None, _L, "the environment: a name, or the path of a Unity executable"),
        ("env_settings.env_args", None, _U, "`environment.options.args`"),
        ("env_settings.base_port", 5005, _U, "`environment.options.base_port`"),
        ("env_settings.num_areas", 1, _U, "`environment.options.num_areas`"),
        (
            "env_settings.num_envs",
            1,
            _W,
            "`environment.num_envs`; not given: 8, or as many as the environment's preset has",
        ),
        ("env_settings.seed", -1, _W, "`seed`; −1 or not given: 0"),
        ("env_settings.timeout_wait", 60, _W, "`environment.start_timeout_s`"),
        (
            "env_settings.max_lifetime_restarts",
            10,
            _W,
            "0: `environment.on_failure: raise`; others count no limit over a lifetime",
        ),
        (
            "env_settings.restarts_rate_limit_n",
            1,
            _W,
            "`environment.on_failure: restart`, `max_restarts_per_minute` = it × 60 / the period",
        ),
        ("env_settings.restarts_rate_limit_period_s", 60, _W, "the period, in seconds"),
        ("engine_settings.width", 84, _U, _ENGINE),
        ("engine_settings.height", 84, _U, _ENGINE),
        ("engine_settings.quality_level", 5, _U, _ENGINE),
        ("engine_settings.time_scale", 20, _U, _ENGINE),
        ("engine_settings.target_frame_rate", -1, _U, _ENGINE),
        ("engine_settings.capture_frame_rate", 60, _U, _ENGINE),
        ("engine_settings.no_graphics", False, _U, "`environment.options.no_graphics`"),
        ("engine_settings.no_graphics_monitor", False, _N, "all simulators are launched alike"),
        ("torch_settings.device", None, _W, "`device`: `cpu`, `cuda` or `cuda:N`; not given: `cpu`"),
        ("debug", False, _L, "`--debug`: shows tracebacks"),
    )
}


_OTHER_SIGNAL = re.compile(r"^(behavior\.reward_signals\.)(?!extrinsic|rnd)[^.]+")
"""Signals that are not listed have the keys of those that are."""


def notes_of(left: Mapping[str, Any], path: str, shown: str) -> list[str]:
    """One line for each key of a mapping at `path` that was not used; raises where one is unknown or refused."""
    notes = []
    path = _OTHER_SIGNAL.sub(r"\1curiosity", path)
    for key, value in left.items():
        own = f"{path}.{key}" if path else key
        rule = KEYS.get(own)
        name = f"ML-Agents setting {shown}{key}"
        if rule is None and not any(each.startswith(f"{own}.") for each in KEYS):
            siblings = {
                each.removeprefix(f"{path}." if path else "").split(".")[0] for each in KEYS if each.startswith(path)
            }
            raise UnknownNameError("ML-Agents setting", shown + key, sorted(shown + each for each in siblings))
        if rule is None or value is None or value == rule.default:
            continue
        if rule.status is Status.REFUSED:
            raise ConfigError(f"{name} is refused: {rule.here}")
        notes.append(f"{name} has no counterpart and is ignored: {_reason(rule)}")
    return notes


def _reason(rule: KeyRule) -> str:
    if rule.status is Status.LEARN:
        return f"relayrl learn uses it; for relayrl train: {rule.here}"
    return f"it is of unity: environments ({rule.here})" if rule.status is Status.UNITY else rule.here
