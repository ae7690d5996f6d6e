"""What the pages about native environments say is true: their code runs, their tables are the settings'."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from relayrl.envs import native
from relayrl.envs.native.native_settings import NativeSettings, ParticleSettings
from relayrl.testing.env_contract import Outcome, check_environment

DOCS = Path(__file__).parents[3] / "docs"
BATCHED_PAGE = (DOCS / "write-a-batched-environment.md").read_text()
NATIVE_PAGE = (DOCS / "native-environments.md").read_text()


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.fixture(name="docking")
def docking_module(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page's environment as the module that its test imports."""
    code, *_ = python_blocks(BATCHED_PAGE)
    module = types.ModuleType("docking")
    exec(compile(code, "docking.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, "docking", module)
    return module.__dict__


def test_the_environment_of_the_page_is_at_most_60_lines() -> None:
    code, *_ = python_blocks(BATCHED_PAGE)
    assert len(code.splitlines()) <= 60


def test_the_test_of_the_page_passes(docking: dict[str, Any]) -> None:
    _, test_code, *_ = python_blocks(BATCHED_PAGE)
    namespace: dict[str, Any] = {}
    exec(compile(test_code, "test_docking.py", "exec"), namespace)
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert len(tests) >= 2
    for test in tests:
        test()


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_the_environment_of_the_page_keeps_the_contract(docking: dict[str, Any], device: str) -> None:
    report = check_environment(lambda _: docking["make"](device=device), num_steps=130)
    assert report.passed, str(report)
    assert report.of("an_episode_begins_where_one_ends").outcome is Outcome.PASSED


def test_the_code_of_the_native_page_runs() -> None:
    namespace: dict[str, Any] = {}
    for code in python_blocks(NATIVE_PAGE):
        exec(compile(code, "native-environments.md", "exec"), namespace)
    assert isinstance(namespace["frame"], np.ndarray)


def option_rows(settings: type[NativeSettings], besides: type[NativeSettings] | None = None) -> list[str]:
    """A table row for every option that `besides` does not have."""
    rows = []
    for name, field in settings.model_fields.items():
        if besides is None or name not in besides.model_fields:
            default = "none" if field.default is None else str(field.default).lower()
            rows.append(f"| `{name}` | {default} | {field.description} |")
    return rows


@pytest.mark.parametrize("name", native.names())
def test_the_options_of_the_page_are_those_of_the_code(name: str) -> None:
    settings = native.settings_class(name)
    section = NATIVE_PAGE.split(f"### `native:{name}`")[1].split("###")[0]
    besides = ParticleSettings if issubclass(settings, ParticleSettings) else NativeSettings
    rows = option_rows(settings, besides)
    assert [line for line in section.splitlines() if line.startswith("| `")] == rows


def test_the_shared_options_of_the_page_are_those_of_the_code() -> None:
    for row in (*option_rows(NativeSettings), *option_rows(ParticleSettings, NativeSettings)):
        assert row in NATIVE_PAGE


def test_the_pictures_of_the_page_are_there_and_small() -> None:
    for name in re.findall(r"\(images/([^)]*)\)", NATIVE_PAGE):
        path = DOCS / "images" / name
        assert path.stat().st_size < 300_000
        with Image.open(path) as picture:
            assert picture.width > 300
