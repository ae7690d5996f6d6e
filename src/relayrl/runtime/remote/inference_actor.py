"""Acting with a policy that is somewhere else, and with two that take each other's place. Free of torch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from relayrl.data.trees import Array, Tree, leaves
from relayrl.errors import ActionMaskError, ConfigError, InferenceError
from relayrl.models.acting.actor import ForwardActor, Outputs
from relayrl.models.exports.exported import PolicyMetadata
from relayrl.models.heads.head_registry import head_of_kind
from relayrl.runtime.remote.inference_link import InferenceLink

_log = logging.getLogger("relayrl.runtime.remote.inference_actor")


class RemoteActor(ForwardActor):
    """The server passes the network; actions are drawn here, so that a seed gives the same ones wherever the network is."""

    def __init__(self, link: InferenceLink, metadata: PolicyMetadata, *, has_value: bool) -> None:
        self._link, self.metadata, self.has_value = link, metadata, has_value
        self.head = head_of_kind(metadata.action_space, metadata.head, metadata.noise_scale)
        self.memory_width = metadata.memory_width

    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        arrays = {f"obs.{path}" if path else "obs": np.ascontiguousarray(leaf) for path, leaf in leaves(obs)}
        num_rows = len(next(iter(arrays.values())))
        if mask is not None:
            arrays["action_mask"] = np.ascontiguousarray(mask)
        if memory is not None and self.memory_width:
            arrays["memory"] = np.ascontiguousarray(memory)
        metadata = self.metadata
        found = self._link.act(metadata.group, metadata.policy_version, num_rows, arrays)
        parameters = self._taken(found, "distribution", (num_rows, self.head.num_parameters))
        value = self._taken(found, "value", (num_rows,)) if self.has_value else None
        after = self._taken(found, "memory", (num_rows, self.memory_width)) if self.memory_width else None
        return Outputs(parameters, value, after)

    def _taken(self, found: dict[str, Array], name: str, shape: tuple[int, ...]) -> Array:
        array = found.get(name)
        if array is None or array.shape != shape or array.dtype != np.float32:
            raise InferenceError(f"{self._link.address} gave no {name} of shape {shape}")
        return np.array(array)  # a frame's memory is read-only


class FallbackActor(ForwardActor):
    """Two actors of the same version: the second acts while the first cannot, and the first again when it can.

    After a failure the first is asked again at the first request that comes `retry_s` later, then after twice that, and so on
    up to `max_retry_s`. What is wrong with a request is no failure of the actor.
    """

    def __init__(
        self,
        first: ForwardActor,
        second: ForwardActor,
        names: tuple[str, str],
        *,
        retry_s: float = 1.0,
        max_retry_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._second, self._names, self._clock = first, second, names, clock
        self._retry_s, self._max_retry_s = retry_s, max_retry_s
        self._lock = threading.Lock()
        self._again_s, self._delay_s = 0.0, retry_s
        self._has_failed = False
        self.head, self.memory_width = first.head, first.memory_width
        self.num_fallbacks = 0
        """Requests that the second acted for."""

    def forward(self, obs: Tree, mask: Array | None, memory: Array | None) -> Outputs:
        if not self._has_failed or self._clock() >= self._again_s:
            try:
                outputs = self._first.forward(obs, mask, memory)
                if np.isfinite(outputs.parameters).all():
                    self._recovered()
                    return outputs
                why = "it gave NaN or infinity"
            except (ConfigError, ActionMaskError):
                raise
            except Exception as error:  # noqa: BLE001 - whatever kept it from acting, the other can
                why = str(error)
            self._failed(why)
        self.num_fallbacks += 1
        return self._second.forward(obs, mask, memory)

    def _failed(self, why: str) -> None:
        first, second = self._names
        with self._lock:
            self._delay_s = min(2.0 * self._delay_s, self._max_retry_s) if self._has_failed else self._retry_s
            self._has_failed, self._again_s = True, self._clock() + self._delay_s
        _log.warning("inference falls back", extra={"from": first, "to": second, "why": why[:300]})

    def _recovered(self) -> None:
        if self._has_failed:
            with self._lock:
                self._has_failed = False
            _log.info("inference is back", extra={"at": self._names[0]})
