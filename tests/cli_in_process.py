"""The `relayrl` command inside the process of a test, which saves the start of an interpreter."""

import contextlib
import io
from dataclasses import dataclass

import pytest

from relayrl.cli.main import main


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """The only line on standard error."""
        (line,) = self.stderr.strip().splitlines()
        return line


def relayrl(*arguments: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(arguments)
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def short_run(folder: str, *more: str) -> None:
    """A run of 64 steps of native:CartPole, with model and checkpoint."""
    settings = [
        "num_envs=2",
        "time_horizon=8",
        "hidden_sizes=[4]",
        "train_pi_iters=1",
        "train_vf_iters=1",
        "tensorboard=false",
    ]
    flags = [part for each in [*settings, "evaluation.episodes=1"] for part in ("--set", each)]
    done = relayrl("train", "native:CartPole", "--steps", "64", "--run-dir", folder, "--quiet", *flags, *more)
    assert done.returncode == 0, done.stderr
