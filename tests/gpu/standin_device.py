"""A device without hardware, for machines without a GPU: torch's backend in Python whose tensors keep their numbers on the CPU.

    RELAYRL_TEST_DEVICE=standin python -m pytest -p standin_device tests/gpu/test_device_matrix.py

It is as strict as a GPU where code goes wrong: an operation on tensors of the host and of the device raises, and so does
viewing one of its tensors in NumPy. A `.to(device)` that is missing is found. It shows neither speed nor how a GPU rounds.
Importing this registers it with torch for the life of the process; `test_standin_device` starts a process of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_iter, tree_map

NAME = "standin"
backend_registration._setup_privateuseone_for_python_backend(NAME)
DEVICE, CPU = torch.device(NAME, 0), torch.device("cpu")
aten = torch.ops.aten
TAKES_BOTH = {aten.copy_.default, aten._copy_from.default, aten._to_copy.default}
TAKES_BOTH |= {aten.index.Tensor, aten.index_put_.default}  # an index may lie on the host, as on a GPU


class StandInTensor(Tensor):
    """A tensor of the device; `numbers` are what it holds."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> StandInTensor:
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        made: Any = Tensor._make_wrapper_subclass(cls, numbers.shape, **layout, device=DEVICE)
        made.numbers = numbers
        return made

    def __init__(self, numbers: Tensor) -> None:
        """Made whole by `__new__`."""

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StandInTensor({self.numbers})"

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, StandInTensor), f"data of {DEVICE} is set to that of {other.device}"
        assert other.shape == self.shape
        self.numbers = other.numbers

    def __deepcopy__(self, memo: dict[int, Any]) -> StandInTensor:
        if id(self) not in memo:
            made = memo[id(self)] = StandInTensor(self.numbers.clone())
            made.requires_grad_(self.requires_grad)
            made.__dict__.update({key: value for key, value in self.__dict__.items() if key != "numbers"})
        return memo[id(self)]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.lstm, torch.gru):
            return Unrolled.apply(func, args, *(one for one in tree_iter(args) if isinstance(one, Tensor)))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Unrolled(torch.autograd.Function):
    """A recurrent layer by the CPU's own kernel, which has no parts that a backend in Python could take over."""

    @staticmethod
    def forward(ctx: Any, func: Any, args: Any, *tensors: Tensor) -> Any:
        with torch.enable_grad():
            ctx.given = [
                one.numbers.detach().requires_grad_() if isinstance(one, StandInTensor) else one for one in tensors
            ]
            given = iter(ctx.given)
            ctx.outputs = func(*tree_map(lambda one: next(given) if isinstance(one, Tensor) else one, args))
        return tuple(StandInTensor(output.detach()) for output in ctx.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        learned = [one for one in ctx.given if one.requires_grad]
        pairs = [(out, own.numbers) for out, own in zip(ctx.outputs, gradients, strict=True) if own is not None]
        outputs, by_outputs = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, learned, by_outputs, allow_unused=True, retain_graph=True))
        by_given = [next(found) if one.requires_grad else None for one in ctx.given]
        return None, None, *(None if one is None else StandInTensor(one) for one in by_given)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation, computed on the CPU; raises where its tensors are not all of the device."""
    given = [one for one in tree_iter((args, kwargs)) if isinstance(one, Tensor)]
    own = [one for one in given if isinstance(one, StandInTensor)]
    strangers = [one for one in given if not isinstance(one, StandInTensor) and one.ndim]
    if own and strangers and func not in TAKES_BOTH:
        raise RuntimeError(f"{func}: tensors on {DEVICE} beside {[tuple(one.shape) for one in strangers]} on the CPU")
    if func is aten._copy_from.default:
        source, target = (_numbers(one) for one in args[:2])
        target.copy_(source)
        return args[1]
    if func is aten.is_pinned.default:
        return False
    goes_home = kwargs.get("device") is not None and kwargs["device"].type == "cpu"
    known = {id(one.numbers): one for one in own}
    found = func(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
    return found if goes_home else tree_map(lambda one: _on_device(one, known), found)


def _numbers(one: Any) -> Any:
    if isinstance(one, torch.device):
        return CPU
    return one.numbers if isinstance(one, StandInTensor) else one


def _on_device(one: Any, known: dict[int, StandInTensor]) -> Any:
    if not isinstance(one, Tensor):
        return one
    with torch.inference_mode(False):
        return known[id(one)] if id(one) in known else StandInTensor(one)


_library = torch.library.Library("_", "IMPL")
_library.fallback(
    lambda func, *args, **kwargs: run(func, args, kwargs), "PrivateUse1"
)  # what makes tensors out of nothing
