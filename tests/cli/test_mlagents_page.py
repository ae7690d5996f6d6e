"""What `docs/coming-from/ml-agents.md` says exists: options of `relayrl learn`, settings, names in Python."""

import importlib
import re
from pathlib import Path

import pytest
import typer

from relayrl import PPOParams
from relayrl.cli.main import app
from relayrl.engines.settings.run_settings import RunSettings

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from" / "ml-agents.md").read_text()
PARTS = dict(zip(("learn", "concepts", "python"), re.split(r"^## (?!What)", PAGE, flags=re.MULTILINE)[1:], strict=True))
SETTINGS = {
    "algo",
    "params",
    "params.lr_schedule",
    "schedules",
    "network",
    "network.memory",
    "network.encoder",
    "network.goal_conditioning",
    "reward_signals",
    "self_play",
    "environment_parameters",
    "trainer",
    "behaviors",
    "environment.num_envs",
    "environment.workers",
}


def rows(part: str) -> list[tuple[str, str]]:
    """Both columns of a part's table."""
    found = re.findall(r"^\| (.*) \| (.*) \|$", PARTS[part], flags=re.MULTILINE)
    return [
        row for row in found if not row[0].startswith("-") and "ML-Agents" not in row[0] and "`mlagents-l" not in row[0]
    ]


def test_relayrl_learn_has_every_option_of_the_table():
    listed = {option for row in rows("learn") for option in re.findall(r"`(--[a-z-]+)", row[0])}
    command = typer.main.get_command(app).commands["learn"]
    taken = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert len(listed) > 25
    assert not listed - taken


def has_setting(path: str) -> bool:
    model = RunSettings
    for name in path.split("."):
        fields = model.model_fields
        if name not in fields:
            return False
        kinds = [fields[name].annotation, *getattr(fields[name].annotation, "__args__", ())]
        model = PPOParams if name == "params" else next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    return True


def test_every_setting_of_the_page_exists():
    written = {word for row in rows("concepts") for word in re.findall(r"`([a-z_.]+)`", row[1])}
    assert SETTINGS - {"behaviors", "schedules"} <= written | {"algo"}
    for path in SETTINGS:
        assert has_setting(path), path
    assert not has_setting("network.nothing")


@pytest.mark.parametrize("part", ["concepts", "python"])
def test_every_name_of_the_page_exists(part):
    names = {name for row in rows(part) for name in re.findall(r"`(relayrl(?:\.[A-Za-z_]+)+)", row[1])}
    for name in sorted(names):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    assert names


def test_every_link_of_the_page_leads_somewhere():
    folder = Path(__file__).parents[2] / "docs" / "coming-from"
    for target, anchor in re.findall(r"\]\(([^)#]+)(#[^)]*)?\)", PAGE):
        page = (folder / target).resolve()
        assert page.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
            known = {"#" + re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
            assert anchor in known, (target, anchor)
