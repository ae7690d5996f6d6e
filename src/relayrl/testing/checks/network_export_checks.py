"""The checks of the kernel contract that write policies to files and run those; the files are gone afterwards."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from relayrl.data.trees import Array, leaves
from relayrl.errors import ExportError, RelayRLError
from relayrl.models.acting.torch_actor import TorchActor
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.policy import ActorCritic
from relayrl.testing.checks.network_bench import NetworkBench

NUM_ROWS = (1, 7, 1000)
RELATIVE, TOLERANCE = 1e-4, 1e-5


def leaves_as_onnx(bench: NetworkBench) -> str | None:
    """a policy with this kernel becomes an ONNX file that gives its outputs for any number of rows"""
    return _compared(bench, ExportFormat.ONNX, lambda path: ExportedActor(path).distribution)


def leaves_as_torchscript(bench: NetworkBench) -> str | None:
    """a policy with this kernel becomes a TorchScript file that gives its outputs for any number of rows"""
    return _compared(bench, ExportFormat.TORCHSCRIPT, _script)


def _script(path: Path) -> Callable[[Any], Array]:
    script = torch.jit.load(path)  # type: ignore[no-untyped-call]
    return lambda obs: np.asarray(script(*(torch.from_numpy(leaf) for _, leaf in leaves(obs)))[0].detach().numpy())


def _compared(
    bench: NetworkBench, file_format: ExportFormat, load: Callable[[Path], Callable[[Any], Array]]
) -> str | None:
    policy = bench.policy()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # What tracing warns about shows in the outputs, if it matters; TorchScript is deprecated as a whole.
        warnings.simplefilter("ignore")
        try:
            run = load(_exported(bench, policy, Path(folder) / f"model{file_format.suffix}", file_format))
            for num_rows in NUM_ROWS:
                obs = bench.observations(num_rows)
                want, got = TorchActor(policy).distribution(obs), run(obs)
                if want.shape != got.shape or not np.allclose(want, got, RELATIVE, TOLERANCE):
                    return f"for {num_rows} rows, the file's outputs are not the policy's"
        except RelayRLError:
            raise
        except Exception as error:  # those of onnx and onnxruntime share no public base class
            raise ExportError(f"{type(error).__name__}: {error}") from error
    return None


def _exported(bench: NetworkBench, policy: ActorCritic, path: Path, file_format: ExportFormat) -> Path:
    spaces = (bench.observation_space, bench.action_space)
    return export_policy(policy, PolicyMetadata("kernel", "contract", "agent", 0, False, *spaces), path, file_format)
