"""Parts of a run that a program gives as objects, or that settings name as `module:name`.

    relayrl.train("CartPole-v1", settings={"network.kernel": Residual, "loss": my_loss, "writers": [JsonLines]})

An object becomes its address in the settings, so that `config.yaml` says what was used; this process finds it there again, and
another one imports it, where the address leads somewhere and the user trusts the file that names it (`runs.trust`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from relayrl.config.plugin_registry import PluginKind, give_plugin, has_plugin, load_plugin
from relayrl.engines.settings.number_schedules import built_in_schedule
from relayrl.envs.recipes import search_here_first
from relayrl.errors import ConfigError, UntrustedError

if TYPE_CHECKING:
    from pathlib import Path

    from relayrl.algorithms.losses import PolicyLoss
    from relayrl.engines.settings.run_settings import RunSettings

_KINDS = {
    "kernel": PluginKind.NETWORK,
    "head": PluginKind.HEAD,
    "loss": PluginKind.LOSS,
    "writers": PluginKind.STATISTICS_WRITER,
    "reward_signals": PluginKind.REWARD_SIGNAL,
    "schedules": PluginKind.SCHEDULE,
}
"""What an object stands for, by the last name of its setting."""


def address_of(part: Any) -> str:
    """`module:name` of a class, a function or what wraps one; of others, the class."""
    inner = getattr(part, "func", part)  # of a functools.partial
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    name = named.__qualname__ if inner is part and named is part else f"{named.__qualname__}(…)"
    return f"{named.__module__}:{name}"


def is_importable(address: str) -> bool:
    """Whether another process can find it: at the top level of a module that is no script or notebook."""
    module, _, name = address.partition(":")
    return module != "__main__" and name.isidentifier()


def with_addresses(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the objects among them replaced by their addresses, under which this process has them."""
    return {key: _with_addresses(key, value) for key, value in settings.items()}


def _with_addresses(key: str, value: Any) -> Any:
    names = key.split(".")
    if "options" in names:  # keyword arguments of a user's
        return value
    kind = _KINDS.get(names[-1]) or (PluginKind.SCHEDULE if "schedules" in names[:-1] else None)
    if kind is PluginKind.REWARD_SIGNAL and isinstance(value, Mapping):
        return {_given(kind, signal): _signal_settings(own) for signal, own in value.items()}
    if isinstance(value, Mapping):
        return {name: _with_addresses(f"{key}.{name}", own) for name, own in value.items()}
    if kind is None:
        return value
    return [_given(kind, each) for each in value] if isinstance(value, (list, tuple)) else _given(kind, value)


def _signal_settings(own: Any) -> Any:
    return own if isinstance(own, Mapping) else {"strength": own}


def _given(kind: PluginKind, value: Any) -> Any:
    return give_plugin(kind, address_of(value), value) if callable(value) else value


def give_parts(parts: tuple[Callable[..., Any], ...]) -> None:
    """Have objects found under their addresses, whatever they are used as."""
    for part in parts:
        for kind in set(_KINDS.values()):
            give_plugin(kind, address_of(part), part)


def load_part(kind: PluginKind, name: str) -> Any:
    """What a name or an address stands for."""
    if ":" not in name or has_plugin(kind, name):
        return load_plugin(kind, name)
    if not is_importable(name):
        raise ConfigError(
            f"the {kind.noun} {name} is code of the program that trained the run; run that program, or pass the object again: "
            "train(settings=…) to resume, load_run(path, parts=[…]) to export"
        )
    module, _, what = name.partition(":")
    try:
        search_here_first(module)
        return getattr(importlib.import_module(module), what)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {kind.noun} {name} cannot be imported: {error}; make it importable") from error


def named_parts(settings: RunSettings) -> Iterator[tuple[PluginKind, str]]:
    """Every part that settings name, environment and algorithm apart."""
    networks = [settings.network, *(settings.network_of(group) for group in settings.behaviors)]
    for network in networks:
        if network.kernel is not None:
            yield PluginKind.NETWORK, network.kernel
        if network.head is not None:
            yield PluginKind.HEAD, network.head
    if settings.loss is not None:
        yield PluginKind.LOSS, settings.loss
    for kind, names in (
        (PluginKind.STATISTICS_WRITER, settings.statistics.writers),
        (PluginKind.REWARD_SIGNAL, settings.reward_signals),
        (PluginKind.SCHEDULE, [each for each in settings.schedules.values() if built_in_schedule(each) is None]),
    ):
        yield from ((kind, name) for name in names)


def require_parts_trusted(settings: RunSettings, source: Path, *, named: set[str], trust: bool) -> None:
    """Raise where `source` names code as `module:name` that the user neither named nor trusts, nor gave as an object."""
    for kind, name in named_parts(settings):
        if ":" in name and is_importable(name) and not (trust or name in named or has_plugin(kind, name)):
            raise UntrustedError(
                f"{source} names the {kind.noun} {name!r:.200}, which runs code of that name; if you trust it, add --trust "
                "(trust=True in Python)"
            )


def strings_in(value: Any) -> Iterator[str]:
    """Every string in nested settings, keys too: what the user wrote."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, own in value.items():
            yield from strings_in(key)
            yield from strings_in(own)
    elif isinstance(value, (list, tuple)):
        for own in value:
            yield from strings_in(own)


def loss_maker(name: str) -> Callable[[Any], PolicyLoss]:
    """What makes the policy loss that the settings name, of the algorithm's params: a `PolicyLoss` class or a function of
    `(log_ratio, advantage)`."""
    from relayrl.algorithms.losses import PolicyLoss

    made = load_part(PluginKind.LOSS, name)
    if isinstance(made, type) and issubclass(made, PolicyLoss):
        return made
    if not callable(made):
        raise ConfigError(
            f"the loss {name} must be a PolicyLoss class or a function of (log_ratio, advantage), not {made!r:.100}"
        )

    class FunctionLoss(PolicyLoss):
        """A function as a loss."""

        def loss(self, log_ratio: Any, advantage: Any) -> Any:
            return made(log_ratio, advantage)

    return lambda _: FunctionLoss()


def takes_layout(make: Callable[..., Any]) -> bool:
    """Whether it makes networks itself, by `(encoder, num_outputs, output_gain, generator)`, not what makes them."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters) >= 4
