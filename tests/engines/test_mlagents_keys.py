"""Every key of ML-Agents' settings file: what the docs say of it is what the reader does.

`python tests/engines/test_mlagents_keys.py` writes the table of the docs.
"""

import re
import sys
from pathlib import Path

import pytest

from relayrl.engines.settings.mlagents_keys import KEYS, KeyRule, Status
from relayrl.engines.settings.mlagents_settings import from_mlagents
from relayrl.engines.settings.run_settings import RunSettings
from relayrl.errors import ConfigError, UnknownNameError

PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "ml-agents-keys.md"

OTHERS = {
    "behavior.trainer_type": "poca",
    "behavior.init_path": "runs/a",
    "behavior.framework": "pytorch",
    "behavior.hyperparameters.batch_size": 64,
    "behavior.hyperparameters.buffer_size": 640,
    "behavior.hyperparameters.learning_rate_schedule": "constant",
    "behavior.hyperparameters.beta_schedule": "constant",
    "behavior.hyperparameters.epsilon_schedule": "constant",
    "behavior.hyperparameters.reward_signal_steps_per_update": 3,
    "behavior.network_settings.vis_encode_type": "match3",
    "behavior.network_settings.goal_conditioning_type": "none",
    "behavior.reward_signals.extrinsic.network_settings": {"hidden_units": 3},
    "checkpoint_settings.run_id": "mine",
    "checkpoint_settings.results_dir": "elsewhere",
    "checkpoint_settings.initialize_from": "other",
    "env_settings.env_path": "Builds/Walker",
    "env_settings.env_args": ["--fast"],
    "torch_settings.device": "cpu",
}
"""Values that are no defaults, where a number or flag cannot be told from the default."""
OF_SAC = (
    "time_horizon",
    "buffer_init_steps",
    "tau",
    "steps_per_update",
    "init_entcoef",
    "save_replay_buffer",
    "reward_signal_steps_per_update",
)
NO_SETTING = {
    "behavior.hyperparameters.save_replay_buffer",
    "torch_settings.device",
    "env_settings.restarts_rate_limit_period_s",  # is the default with another number of restarts only
}
"""Keys that work by what is always so here."""


def other_value(rule: KeyRule):
    if rule.path in OTHERS:
        return OTHERS[rule.path]
    if isinstance(rule.default, bool):
        return not rule.default
    if isinstance(rule.default, int):
        return rule.default + 2 if rule.default >= 0 else 3
    if isinstance(rule.default, float):
        return rule.default / 2
    return {"vis_encode_type": "resnet", "goal_conditioning_type": "none"}.get(
        rule.path.rsplit(".", 1)[-1], "x.demo" if rule.path.endswith("demo_path") else 7
    )


def file_with(path: str, value) -> dict:
    """A file of ML-Agents with one key, and what the key needs to be read."""
    first, *names = path.split(".")
    values: dict = {"behaviors": {"Walker": {"trainer_type": "sac" if names and names[-1] in OF_SAC else "ppo"}}}
    own = values["behaviors"]["Walker"] if first == "behavior" else values.setdefault(first, {})
    for name in names[:-1]:
        own = own.setdefault(name, {})
    own[names[-1]] = value
    for part in ("behavioral_cloning", "gail"):  # both need demonstrations
        if part in names:
            place = values["behaviors"]["Walker"]
            (place if part == "behavioral_cloning" else place["reward_signals"])[part].setdefault("demo_path", "y.demo")
    return values


SIMPLE = [rule for rule in KEYS.values() if "." in rule.path and not rule.path.startswith("environment_parameters")]


@pytest.mark.parametrize("rule", SIMPLE, ids=lambda rule: rule.path)
def test_a_key_does_what_its_row_says(rule):
    path, value = rule.path, other_value(rule)
    assert value != rule.default
    given = file_with(path, value)
    signal = re.match(r"behavior\.reward_signals\.(curiosity|rnd|gail)\.", path)
    if signal or "extrinsic" in path:
        given["behaviors"]["Walker"]["reward_signals"].setdefault("extrinsic", {})
    values, notes = from_mlagents(given, "CartPole-v1")
    is_told = [note for note in notes if path.removeprefix("behavior.") in note and "no counterpart" in note]
    if rule.status is not Status.WORKS:
        assert is_told, notes
        return
    assert not is_told, notes
    RunSettings.model_validate({"env": "CartPole-v1", **values}) if not signal else None
    if path not in NO_SETTING:
        at_default = file_with(path, rule.default)
        if signal or "extrinsic" in path:
            at_default["behaviors"]["Walker"]["reward_signals"].setdefault("extrinsic", {})
        assert values != from_mlagents(at_default, "CartPole-v1")[0]


@pytest.mark.parametrize(
    "rule", [rule for rule in SIMPLE if rule.status is not Status.WORKS], ids=lambda rule: rule.path
)
def test_defaults_are_not_told(rule):
    """ML-Agents writes whole files, with every default."""
    if rule.default is not None:
        assert not from_mlagents(file_with(rule.path, rule.default), "CartPole-v1")[1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"behaviors": {"A": {"trainer_type": "ppo", "max_step": 3}}}, "A.max_steps"),
        ({"behaviors": {"A": {"trainer_type": "ppo", "hyperparameters": {"betta": 3}}}}, "A.hyperparameters.beta"),
        ({"default_settings": {}, "env_setings": {}}, "env_settings"),
        ({"default_settings": {}, "engine_settings": {"widht": 3}}, "engine_settings.width"),
        ({"default_settings": {}, "algo": "ppo"}, "algo"),
        ({"default_settings": {"network_settings": {"vis_encode_type": "vgg"}}}, "match3"),
        ({"default_settings": {"hyperparameters": {"beta_schedule": "cosine"}}}, "linear"),
        ({"default_settings": {"hyperparameters": 3}}, "mapping"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given, words):
    with pytest.raises((ConfigError, UnknownNameError), match=re.escape(words)) as error:
        from_mlagents(given)
    assert "\n" not in str(error.value)


def test_unity_gets_what_is_its_own():
    given = {
        "default_settings": {},
        "env_settings": {"env_args": ["-x"], "base_port": 6000, "num_areas": 4, "timeout_wait": 7, "num_envs": 2},
        "engine_settings": {"width": 100, "time_scale": 5, "no_graphics": True},
    }
    values, notes = from_mlagents(given, "unity:Builds/Walker")
    assert not notes
    assert values["environment"] == {
        "num_envs": 2,
        "start_timeout_s": 7,
        "options": {
            "args": ["-x"],
            "base_port": 6000,
            "num_areas": 4,
            "no_graphics": True,
            "engine": {"width": 100, "time_scale": 5},
        },
    }
    assert len(from_mlagents(given, "CartPole-v1")[1]) == 6


def test_restarts_are_counted_by_the_minute():
    def environment(**own) -> dict:
        return from_mlagents({"default_settings": {}, "env_settings": own})[0].get("environment", {})

    assert environment(restarts_rate_limit_n=1, restarts_rate_limit_period_s=60, max_lifetime_restarts=10) == {}
    assert environment(restarts_rate_limit_n=3, restarts_rate_limit_period_s=30) == {
        "on_failure": "restart",
        "max_restarts_per_minute": 6,
    }
    assert environment(max_lifetime_restarts=0) == {"on_failure": "raise"}


def test_schedules_follow_the_learning_rates_unless_they_say_otherwise():
    def schedules(**hyper) -> dict:
        return from_mlagents({"behaviors": {"A": {"trainer_type": "ppo", "hyperparameters": hyper}}})[0]["schedules"]

    both = {"entropy_coef": "linear(0.005, 1e-05)", "clip_ratio": "linear(0.2, 0.1)"}
    assert schedules() == both
    assert schedules(learning_rate_schedule="constant") == {}
    assert schedules(learning_rate_schedule="constant", beta_schedule="linear") == {
        "entropy_coef": both["entropy_coef"]
    }
    assert schedules(epsilon_schedule="constant", beta=0.02) == {"entropy_coef": "linear(0.02, 1e-05)"}


def table() -> str:
    """The docs' table."""
    rows = ["| ML-Agents | default there | here | what it is |", "|---|---|---|---|"]
    for rule in KEYS.values():
        default = (
            ""
            if rule.default is None
            else f"`{str(rule.default).lower() if isinstance(rule.default, bool) else rule.default}`"
        )
        shown = rule.path.replace("behavior.", "behaviors.NAME.", 1) if rule.path.startswith("behavior.") else rule.path
        rows.append(f"| `{shown}` | {default} | {rule.status.value} | {rule.here} |")
    return "\n".join(rows)


def test_the_docs_have_every_key():
    assert table() in PAGE.read_text(), "write it with: python tests/engines/test_mlagents_keys.py"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition("| ML-Agents |")
    _, _, after = rest.partition("\n\n")
    PAGE.write_text(before + table() + ("\n\n" + after if after else "\n"))
    sys.stdout.write(f"{len(KEYS)} keys\n")
