"""Which packages of environments work: each is checked, trained on for 2,000 steps, evaluated and drawn, as its users would.

    python benchmarks/compatibility.py                     what is installed; the table goes to docs/compatibility.md
    python benchmarks/compatibility.py --install           also what is not, each package in a throwaway virtual environment
    python benchmarks/compatibility.py --only minigrid     one package, or several; rows of the others stay as they are
    python benchmarks/compatibility.py --render            the table again from what was kept

Every step is a `relayrl` command in a process of its own, with a deadline; what fails is kept with the line that it printed.
Packages that are not installed, or do not install, are rows as well.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
KEPT, TABLE = HERE / "compatibility.jsonl", HERE.parent / "docs" / "compatibility.md"
CONSTRAINTS = HERE.parent / "constraints.txt"
BEGIN, END = "<!-- table: written by benchmarks/compatibility.py -->", "<!-- end of table -->"
TRAIN_STEPS = 2_000
DEADLINE_S, CHECK_S, INSTALL_S = 600.0, 120.0, 600.0
STEPS = ("check", "train", "evaluate", "render")


@dataclass(frozen=True)
class Package:
    """A package from PyPI, and an environment of it."""

    distribution: str
    env: str
    options: tuple[str, ...] = ()
    """Settings for `train`, as after `--set`."""
    needs: tuple[str, ...] = ()
    """What else has to be installed for this environment."""


PACKAGES = (
    Package("relayrl", "native:simple_spread"),
    Package("gymnasium", "CartPole-v1"),
    Package("gymnasium", "Pendulum-v1"),
    Package("gymnasium", "FrozenLake-v1"),
    Package("gymnasium", "LunarLander-v3", needs=("box2d",)),
    Package("gymnasium", "HalfCheetah-v5", needs=("mujoco",)),
    Package("mpe2", "mpe2:simple_spread_v3"),
    Package("mpe2", "mpe2:simple_tag_v3"),
    Package("pettingzoo", "pettingzoo:classic.tictactoe_v3"),
    Package("pettingzoo", "pettingzoo:classic.connect_four_v3"),
    Package("pettingzoo", "pettingzoo:sisl.multiwalker_v9", needs=("box2d",)),
    Package("pettingzoo", "pettingzoo:butterfly.knights_archers_zombies_v11", needs=("pymunk",)),
    Package("vmas", "vmas:simple_spread"),
    Package("vmas", "vmas:balance"),
    Package("minigrid", "minigrid:MiniGrid-Empty-5x5-v0"),
    Package("highway-env", "highway_env:highway-fast-v0"),
    Package("ale-py", "ale_py:ALE/Pong-v5"),
    Package("flappy-bird-gymnasium", "flappy_bird_gymnasium:FlappyBird-v0"),
    Package("lbforaging", "lbforaging:Foraging-8x8-2p-3f-v3"),
    Package("rware", "rware:rware-tiny-2ag-v2"),
    Package("mo-gymnasium", "mo_gymnasium:deep-sea-treasure-v0", ("environment.reward_weights=[1.0, 1.0]",)),
    Package("gymnasium-robotics", "gymnasium_robotics:FetchReach-v4"),
    Package("panda-gym", "panda_gym:PandaReach-v3"),
    Package("miniworld", "miniworld:MiniWorld-Hallway-v0"),
    Package("metadrive-simulator", "metadrive:MetaDriveEnv"),
    Package("sumo-rl", "sumo_rl:sumo-rl-v0"),
    Package("magent2", "magent2.environments.battle_v4:parallel_env"),
    Package(
        "dm-meltingpot",
        "shimmy.meltingpot_compatibility:MeltingPotCompatibilityV0",
        ("environment.options={substrate_name: prisoners_dilemma_in_the_matrix__arena}",),
        needs=("shimmy",),
    ),
)


@dataclass(frozen=True)
class Row:
    """What became of one environment; a step holds `ok`, or the line that it failed with."""

    distribution: str
    env: str
    version: str = ""
    state: str = "tried"
    steps: dict[str, str] = field(default_factory=dict)
    python: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install what is missing, each into a throwaway venv")
    parser.add_argument("--only", action="append", metavar="PACKAGE", help="these packages alone")
    parser.add_argument("--render", action="store_true", help="write the table from what was kept")
    arguments = parser.parse_args()
    kept = read_rows()
    if not arguments.render:
        for package in PACKAGES:
            if arguments.only and package.distribution not in arguments.only:
                continue
            row = try_package(package, install=arguments.install)
            if row.state == "not installed" and kept.get(package.env, row).state == "tried":
                continue  # what another machine found is better than nothing
            kept[package.env] = row
            print(describe(row), flush=True)
            write_rows(kept.values())
    write_table(kept)


def try_package(package: Package, *, install: bool) -> Row:
    """Check, train, evaluate and draw one environment."""
    with tempfile.TemporaryDirectory() as folder:
        python = sys.executable
        if _version(python, package.distribution) is None:
            if not install:
                return Row(package.distribution, package.env, state="not installed")
            try:
                python = _installed_apart(package, Path(folder) / "venv")
            except subprocess.SubprocessError as error:
                return Row(package.distribution, package.env, state=f"does not install: {_complaint(error)}")
        version = _version(python, package.distribution) or ""
        return Row(
            package.distribution, package.env, version, steps=_tried(package, python, Path(folder)), python=_python()
        )


def _tried(package: Package, python: str, folder: Path) -> dict[str, str]:
    run = folder / "run"
    settings = [part for own in package.options for part in ("--set", own)]
    trained = ["--steps", str(TRAIN_STEPS), "--run-dir", str(run), "--quiet", "--set", "evaluation.episodes=0"]
    play = ["evaluate", str(run), "--env", package.env, "--max-episode-steps", "200"]
    commands = {
        "check": ["check-env", package.env, "--timeout-s", f"{CHECK_S:g}", "--num-envs", "2", "--json", *settings],
        "train": ["train", package.env, *trained, *settings],
        "evaluate": [*play, "--episodes", "2"],
        "render": [*play, "--episodes", "1", "--render", "gif"],
    }
    steps: dict[str, str] = {}
    for step, arguments in commands.items():
        steps[step] = "not run" if step in ("evaluate", "render") and steps["train"] != "ok" else ""
        if not steps[step]:
            steps[step] = _ran(python, step, arguments, folder)
    return steps


def _ran(python: str, step: str, arguments: list[str], folder: Path) -> str:
    source = str(HERE.parent / "src")  # a throwaway environment does not see an editable installation
    environment = {**os.environ, "PYTHONPATH": source, "SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}
    try:
        done = subprocess.run(
            [python, "-m", "relayrl", *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=folder,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {DEADLINE_S:g} s"
    if step == "check":
        return _verdict(done)
    return "ok" if done.returncode == 0 else _last_line(done.stderr)


def _verdict(done: subprocess.CompletedProcess[str]) -> str:
    try:
        verdict = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return _last_line(done.stderr)
    if not verdict["failed"]:
        return "ok" if verdict["can_train"] else "not known"
    return f"{'optional' if verdict['can_train'] else 'cannot train'}: {', '.join(verdict['failed'])}"


def _installed_apart(package: Package, folder: Path) -> str:
    """The Python of a virtual environment that has the package, and everything that this one has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    python = folder / "bin" / "python"
    purelib = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (Path(purelib) / "relayrl_base.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "-c", str(CONSTRAINTS)]
    subprocess.run(
        [*pip, package.distribution, *package.needs],
        check=True,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        cwd=folder,
    )
    return str(python)


def _version(python: str, distribution: str) -> str | None:
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _complaint(error: subprocess.SubprocessError) -> str:
    return _last_line(str(getattr(error, "stderr", "") or error))


def _last_line(text: str) -> str:
    """The line that a command ended with: RelayRL's own where there is one, without paths and addresses."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line.removeprefix("relayrl: ") for line in lines if line.startswith("relayrl: ")]
    line = (own or lines or ["it said nothing"])[-1]
    line = re.sub(r" at 0x[0-9a-f]+|(?<=environment) [0-9a-f-]{36} \(seed \w+\)", "", line)
    words = ("…" if word.startswith("/") and word.count("/") > 1 else word for word in line.split())
    return " ".join(words)[:200]


def _python() -> str:
    return f"{platform.python_version()}, {platform.system()} {platform.machine()}"


def describe(row: Row) -> str:
    """One line for whoever waits."""
    steps = "  ".join(f"{step}: {row.steps[step]}" for step in STEPS) if row.steps else row.state
    return f"{row.distribution} {row.version}  {row.env}  {steps}"


def read_rows() -> dict[str, Row]:
    if not KEPT.exists():
        return {}
    rows = (Row(**json.loads(line)) for line in KEPT.read_text().splitlines())
    return {row.env: row for row in rows}


def write_rows(rows: Iterable[Row]) -> None:
    KEPT.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def write_table(kept: dict[str, Row]) -> None:
    """The table between its marks, in the order of `PACKAGES`; notes below say what failed."""
    rows = [
        kept.get(package.env, Row(package.distribution, package.env, state="not installed")) for package in PACKAGES
    ]
    lines = ["| package | version | environment | check | train | evaluate | render |", "|---|---|---|---|---|---|---|"]
    notes: list[str] = []

    def cell(text: str) -> str:
        if text == "ok":
            return "yes"
        if text in ("not run", "not installed"):
            return text
        if text not in notes:
            notes.append(text)
        return f"{'yes' if text.startswith('optional: ') else 'no'} [{notes.index(text) + 1}]"

    for row in rows:
        cells = [cell(row.steps[step]) for step in STEPS] if row.steps else [cell(row.state), "", "", ""]
        lines.append(f"| {row.distribution} | {row.version} | `{row.env}` | {' | '.join(cells)} |")
    shown = [f"{number}. {note.replace('|', '/').replace('<', '‹')}" for number, note in enumerate(notes, start=1)]
    pythons = sorted({row.python for row in rows if row.python})
    tried = f"RelayRL {importlib.metadata.version('relayrl')}, Python {'; '.join(pythons)}." if pythons else ""
    text = "\n".join([BEGIN, "", tried, "", *lines, "", *shown, "", END])
    before, _, rest = TABLE.read_text().partition(BEGIN)
    TABLE.write_text(before + text + rest.partition(END)[2])


if __name__ == "__main__":
    main()
