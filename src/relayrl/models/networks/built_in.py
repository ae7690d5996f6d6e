"""Whether something is one of RelayRL's own and unchanged, so that a faster twin (compiled, or in NumPy) may stand in for it.

The twins repeat what a class does; they cannot know what a subclass, a patched method or a hook does. Whoever has a faster way
therefore asks here, once when it makes its plans, and leaves everything else to the methods themselves. torch is not imported:
actors without it ask as well.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType
from typing import Any

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NOT_LOOKED_AT = frozenset({("builtins", "object"), ("abc", "ABC"), ("torch.nn.modules.module", "Module")})
"""Bases whose methods are nobody's formulas; profilers and debuggers exchange those of torch's `Module`."""


_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


class BuiltIns:
    """Some classes, with the methods that they have now; not those that had somebody else's before."""

    def __init__(self, *kinds: type) -> None:
        methods = {kind: _methods(kind) for kind in kinds}
        self._methods = {
            kind: own for kind, own in methods.items() if all(map(_is_written_with_its_class, own.values()))
        }

    def __contains__(self, value: object) -> bool:
        """Whether `value` is of exactly one of the classes, with all of its methods and without hooks."""
        methods = self._methods.get(type(value))
        own = getattr(value, "__dict__", {})
        is_plain = methods is not None and methods.keys().isdisjoint(own) and not any(own.get(hook) for hook in _HOOKS)
        return is_plain and _methods(type(value)) == methods

    def keeps(self, value: object, *names: str) -> bool:
        """Whether `value` is of one of the classes, or derived from it, with these methods of it."""
        kind = next((kind for kind in self._methods if isinstance(value, kind)), None)
        if kind is None or not getattr(value, "__dict__", {}).keys().isdisjoint(names):
            return False
        now = _methods(type(value))
        return all(now.get(name) is self._methods[kind].get(name) for name in names)


def _methods(kind: type) -> dict[str, Any]:
    bases = [base for base in reversed(kind.__mro__) if (base.__module__, base.__qualname__) not in _NOT_LOOKED_AT]
    found = {name: value for base in bases for name, value in vars(base).items()}
    return {name: value for name, value in found.items() if callable(value) or isinstance(value, property)}


def _is_written_with_its_class(method: Any) -> bool:
    """Whether a method is RelayRL's, torch's or Python's, by the file that its code is in: not one that a program put there."""
    function = method.fget if isinstance(method, property) else method
    if not isinstance(function, FunctionType):
        return type(function).__module__.partition(".")[0] not in ("unittest", "mock")
    place = os.path.abspath(function.__code__.co_filename)
    if function.__code__.co_filename.startswith("<"):  # of a dataclass
        return True
    torch = sys.modules.get("torch")
    roots = [_PACKAGE, *([] if torch is None or torch.__file__ is None else [os.path.dirname(torch.__file__) + os.sep])]
    is_standard = place.startswith(_STANDARD_LIBRARY) and "-packages" not in place
    return is_standard or any(place.startswith(root) for root in roots)
