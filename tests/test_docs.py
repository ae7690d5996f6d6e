"""What the docs say runs: every Python block of every page, in order, every file of settings, and every example."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from relayrl.engines.local.run_parts import build_parts
from relayrl.engines.settings.run_settings import build_run_settings

ROOT = Path(__file__).parent.parent
ELSEWHERE = {"write-a-batched-environment.md"}
"""Run by a test of its own (tests/envs/native): its code is a module that its later blocks import."""
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in page.read_text() and page.name not in ELSEWHERE
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_a_page_runs(page, tmp_path):
    (tmp_path / "page.py").write_text("\n".join(BLOCK.findall(page.read_text())))
    done = subprocess.run([sys.executable, "page.py"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
YAML_BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for i, block in enumerate(YAML_BLOCK.findall(page.read_text()))
]
GROUP = re.compile(r"`evaluation\.group: (\w+)`|`(\w+)/episode/return_mean`")


@pytest.mark.parametrize("block", YAML_BLOCKS)
def test_settings_of_a_page_fit_their_environment(block, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(block)
    parts = build_parts(build_run_settings(None if "env:" in block else "CartPole-v1", file, {}, []))
    parts.close()
    if "simple_adversary" in block:  # whose groups other pages name as well
        pages = ((ROOT / "docs" / name).read_text() for name in ("evaluation.md", "metrics.md"))
        named = {name for page in pages for pair in GROUP.findall(page) for name in pair if name}
        assert named
        assert named <= set(parts.env.groups)


NEED_A_SERVER = {"standalone_client.py"}
"""Run by a test of its own (tests/servers)."""
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in NEED_A_SERVER]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example, tmp_path):
    command = [sys.executable, str(example), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
