"""Hyper-parameters that may change while a run goes on: learning rates, clipping, the entropy's weight, exploration noise.

Names, bounds and errors are those of the settings `params.…`. What was set travels in checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from relayrl.config.settings import parse_settings
from relayrl.errors import ConfigError, UnknownNameError
from relayrl.training.trainers.policy_trainer import PolicyTrainer


class LiveParams(MutableMapping[str, Any]):
    """The settable numbers of some groups by name; setting one sets it for all of them, from the next update on."""

    def __init__(
        self, trainer: PolicyTrainer, groups: Sequence[str], changed: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self._trainer, self._groups = trainer, tuple(groups)
        self._changed: dict[str, dict[str, Any]] = {} if changed is None else changed

    def of(self, group: str) -> LiveParams:
        """Those of one group."""
        if group not in self._groups:
            raise UnknownNameError("group", group, self._groups)
        return LiveParams(self._trainer, [group], self._changed)

    def __getitem__(self, name: str) -> Any:
        self._require_known(name)
        values = {group: getattr(self._trainer.params_of(group), name) for group in self._groups}
        if len(set(values.values())) > 1:
            raise ConfigError(f"groups have different {name}: {values}; ask run.params.of(group)[{name!r}]")
        return values[self._groups[0]]

    def __setitem__(self, name: str, value: Any) -> None:
        self._require_known(name)
        for group in self._groups:
            params = self._trainer.params_of(group)
            checked = parse_settings(type(params), params.model_dump() | {name: value})
            self._trainer.configure(group, params.model_copy(update={name: getattr(checked, name)}))
            self._changed.setdefault(group, {})[name] = getattr(checked, name)

    def __delitem__(self, name: str) -> None:
        raise ConfigError(f"{name} cannot be removed; set it to another number")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"LiveParams({ {name: getattr(self._trainer.params_of(self._groups[0]), name) for name in self} })"

    def _names(self) -> list[str]:
        if not self._trainer.settable:
            return []
        return [name for name in self._trainer.settable if hasattr(self._trainer.params_of(self._groups[0]), name)]

    def _require_known(self, name: str) -> None:
        if name not in self._names():
            raise UnknownNameError("hyper-parameter that may change during a run", name, self._names())

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The numbers that were set, by group."""
        return {group: dict(own) for group, own in self._changed.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from `state_dict`."""
        for group in self._groups:
            own = self.of(group)
            for name, value in state.get(group, {}).items():
                if name in own:
                    own[name] = value
