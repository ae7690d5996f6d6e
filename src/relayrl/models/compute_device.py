"""Where networks compute: the CPU, or a GPU. Finds a device by its name, and moves rows to it and numbers back.

Networks are made on the CPU and moved, so that a seed gives the same first parameters everywhere. What is drawn is drawn by
NumPy on the host: a run takes the same decisions on every device, up to rounding. Not here: which device is the fastest
(`engines.device_trial`).
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from relayrl.data.trees import Array, map_tree
from relayrl.errors import ConfigError

CPU = torch.device("cpu")
_CUDA = re.compile(r"cuda(:\d+)?")
M = TypeVar("M", bound=nn.Module)


def compute_device(name: str) -> torch.device:
    """The device that `cpu` or `cuda[:n]` names; `ConfigError` where this machine has none such."""
    if name in ("cpu", "cpu:0"):
        return CPU
    if name == "auto":
        raise ConfigError("device 'auto' is measured before a whole run (relayrl train); here, give 'cpu' or 'cuda'")
    if name.partition(":")[0] == torch._C._get_privateuse1_backend_name() != "privateuseone":
        return torch.device(name)  # a backend that registered itself with torch
    if not _CUDA.fullmatch(name):
        raise ConfigError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:N")
    if missing := missing_cuda():
        raise ConfigError(f"device {name!r}: {missing}, or use device cpu")
    # The parameters of all networks of a loss lie in one vector, which recurrent cells copy their own out of.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    device, count = torch.device(name), torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ConfigError(
            f"device {name!r}: this machine has {count} CUDA devices, numbered from 0; use a lower number"
        )
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def missing_cuda() -> str:
    """Why no CUDA device can be used, and what to do; empty where one can."""
    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a build with it (https://pytorch.org)"
    return "torch finds no CUDA device; check the driver with nvidia-smi and CUDA_VISIBLE_DEVICES"


def set_gpu_arithmetic(device: torch.device, *, deterministic: bool, tf32: bool) -> None:
    """Whether convolutions and recurrent cells on a GPU give the same numbers every time, or may be faster; and whether torch's
    matrix products round what they multiply."""
    if device.type != "cuda":
        return
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = deterministic, not deterministic
    torch.backends.cuda.matmul.allow_tf32 = tf32
    if deterministic:  # of recurrent cells; read when the first product is computed
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def device_of(module: nn.Module) -> torch.device:
    """Where a module's parameters are."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), CPU)


def on_cpu(module: M) -> M:
    """A module on the CPU: itself, or a copy."""
    return module if device_of(module) == CPU else copy.deepcopy(module).to(CPU)


def moved(array: Array | Tensor, device: torch.device) -> Tensor:
    """An array on a device. To a GPU it goes through pinned memory, and nobody waits for it; on the CPU it is not copied. What
    is a tensor already stays where it is."""
    if isinstance(array, Tensor):
        return array
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    # The allocator of pinned memory keeps what it gave until the copy is over.
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def moved_tree(tree: Any, device: torch.device) -> Any:
    """The same leaf by leaf."""
    return map_tree(lambda leaf: moved(leaf, device), tree)


def fetched(*columns: Tensor | None) -> list[Array | None]:
    """Columns `[M, …]` of one dtype as arrays, in one transfer."""
    given = [column for column in columns if column is not None]
    flat = [column.reshape(len(column), -1) for column in given]
    whole = torch.cat(flat, -1).cpu().numpy()
    found, begin = [], 0
    for column, part in zip(given, flat, strict=True):
        found.append(whole[:, begin : (begin := begin + part.shape[1])].reshape(column.shape))
    rest = iter(found)
    return [None if column is None else next(rest) for column in columns]
