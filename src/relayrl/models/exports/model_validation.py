"""Whether bytes that came from elsewhere are a policy that may be loaded. Free of torch.

    metadata = validate_model(content, observation_space=…, action_space=…)      # or ModelRefusedError

Checked in this order, so that nothing reaches onnxruntime before its structure is known:

1. size;
2. structure (`onnx_reader`): no control flow, functions, external data or tensors whose bytes do not fit their shape;
3. operators: those of `OPERATORS` in ONNX's own domain, so no custom ones; how often weights are used;
4. metadata, and its spaces against those that are expected;
5. names, types and shapes of inputs and outputs against the spaces;
6. a probe: observations that every reader can compute (`probe_inputs`) pass the graph, within a bound of memory and of time.
   Outputs must be finite, have the right shapes, depend on their own row only and be what the exporter wrote into the metadata.

A graph of these operators computes numbers and nothing else: it opens no file and runs no code. onnxruntime's own kernels are
trusted; there is no sandbox around them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array, Space, leaf_dtype, space_leaves
from relayrl.errors import ModelRefusedError, RelayRLError
from relayrl.models.exports.exported import PolicyMetadata, action_name
from relayrl.models.exports.mlp_description import MlpDescription
from relayrl.models.exports.onnx_reader import GraphValue, OnnxContent, read_onnx
from relayrl.models.heads.action_head import ActionHead
from relayrl.models.heads.head_registry import head_of_kind

# fmt: off
OPERATORS = frozenset(
    {  # what the exporter writes, for every head, encoder and memory …
        "Add", "ArgMax", "Cast", "Clip", "Concat", "Constant", "Conv", "Div", "Expand", "Flatten", "Gather", "Gemm",
        "Greater", "Identity", "Log", "LogSoftmax", "Max", "Min", "Mul", "Not", "OneHot", "Relu", "Reshape", "Shape",
        "Sigmoid", "Slice", "Split", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where",
        # … and what networks of users' own are usually made of
        "Abs", "And", "AveragePool", "BatchNormalization", "Ceil", "Cos", "Elu", "Equal", "Erf", "Exp", "Floor", "GRU",
        "GlobalAveragePool", "HardSigmoid", "HardSwish", "InstanceNormalization", "LSTM", "LayerNormalization",
        "LeakyRelu", "Less", "LessOrEqual", "GreaterOrEqual", "MatMul", "MaxPool", "Mod", "Neg", "Or", "PRelu", "Pad",
        "Pow", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Selu", "Sign", "Sin", "Softmax",
        "Softplus", "Softsign", "Sqrt", "Sum",
    }
)
# fmt: on
"""Operators of ONNX's own domain that a policy may have. None loops, draws random numbers or touches a file."""
_PACKING = frozenset({"Conv", "GRU", "Gemm", "LSTM", "MatMul"})
"""Operators for which onnxruntime keeps a copy of their weights in another order."""
MAX_OPSET, MAX_IR_VERSION = 23, 12
NUM_PROBE_ROWS = 4
TOLERANCE = 1e-4
_TYPES = {"f4": 1, "u1": 2, "i1": 3, "i2": 5, "i4": 6, "i8": 7, "b1": 9, "f2": 10, "f8": 11}
_FLOAT = _TYPES["f4"]
_GOLDEN = 0.6180339887498949
_LOOK_S = 0.05
"""How often a run is looked at that does not stop."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Bounds of a model that came from elsewhere."""

    max_bytes: int = 64 << 20
    max_operators: int = 4096
    max_probe_bytes: int = 512 << 20
    """Memory that weights and the probe's rows may take."""
    probe_timeout_s: float = 10.0


DEFAULT_LIMITS = ModelLimits()
_memory_bound: int | None = None
_memory_lock = threading.Lock()


def validate_model(
    content: bytes,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    needs_probe: bool = False,
    limits: ModelLimits = DEFAULT_LIMITS,
) -> PolicyMetadata:
    """What a policy's file says of itself, if it may be loaded; `ModelRefusedError` says why not.

    Spaces that are given must be the file's. With `needs_probe`, a file without an expected answer to the probe is refused;
    files from before exporters wrote one have none.
    """
    metadata, head, described = read_policy(
        content, observation_space=observation_space, action_space=action_space, limits=limits
    )
    if needs_probe and not metadata.probe:
        raise ModelRefusedError("the model has no answer to the probe in its metadata; export it again")
    _check_probe(content, described, metadata, head, limits)
    return metadata


def read_policy(
    content: bytes,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    limits: ModelLimits = DEFAULT_LIMITS,
) -> tuple[PolicyMetadata, ActionHead, OnnxContent]:
    """All that `validate_model` checks before the probe: what a file says of itself, its head and its graph."""
    if not 0 < len(content) <= limits.max_bytes:
        raise ModelRefusedError(f"the model has {len(content)} bytes; it must have 1 to {limits.max_bytes}")
    described = read_onnx(content)
    _check_operators(described, limits)
    _check_weights(described, limits)
    metadata, head = _described_policy(described)
    for what, own, expected in (
        ("observation", metadata.observation_space, observation_space),
        ("action", metadata.action_space, action_space),
    ):
        if expected is not None and own != expected:
            raise ModelRefusedError(f"the model's {what} space is {own!s:.200}, expected {expected!s:.200}")
    if metadata.masked and head.mask_width is None:
        raise ModelRefusedError("the model wants action masks for actions that cannot be masked")
    _check_signature(described, metadata, head)
    return metadata, head, described


def probe_inputs(metadata: PolicyMetadata, head: ActionHead) -> dict[str, Array]:
    """The graph's inputs for `NUM_PROBE_ROWS` rows, by name: the same numbers everywhere, for ever.

    Number i of all inputs, counted from 1 in the graph's order, is u = frac(i · 0.6180339887498949), spread over the leaf's
    bounds (reals: within ±1 where they are wider; integers: the first 256 values). Masks allow all; memories are within ±1.
    """
    inputs: dict[str, Array] = {}
    count = 0

    def spread(shape: tuple[int, ...]) -> Array:
        nonlocal count
        size = int(np.prod(shape, dtype=np.int64))
        numbers = np.arange(count + 1, count + 1 + size, dtype=np.float64)
        count += size
        return np.asarray(np.mod(numbers * _GOLDEN, 1.0).reshape(shape))

    for path, leaf in space_leaves(metadata.observation_space):
        dtype = leaf_dtype(leaf)
        u = spread((NUM_PROBE_ROWS, *(leaf.shape or ())))
        low, high = _bounds(leaf)
        if dtype.kind == "f":
            low, high = np.maximum(low, np.minimum(high, -1.0)), np.minimum(high, np.maximum(low, 1.0))
            inputs[f"obs.{path}" if path else "obs"] = (low + u * (high - low)).astype(dtype)
        else:
            width = np.minimum(high - low, 255.0)
            inputs[f"obs.{path}" if path else "obs"] = (low + np.floor(u * (width + 1.0))).astype(dtype)
    if metadata.masked:
        inputs["action_mask"] = np.ones((NUM_PROBE_ROWS, head.mask_width or 0), bool)
    if metadata.memory_width:
        inputs["memory"] = (2.0 * spread((NUM_PROBE_ROWS, metadata.memory_width)) - 1.0).astype(np.float32)
    return inputs


def probe_text(distribution: Array) -> str:
    """The answer to the probe as it stands in a file's metadata."""
    numbers = np.ascontiguousarray(distribution, "<f4")
    return json.dumps({"shape": list(numbers.shape), "distribution": base64.b64encode(numbers.tobytes()).decode()})


def _bounds(leaf: Space) -> tuple[Any, Any]:
    """Smallest and largest value of each number of a leaf."""
    if isinstance(leaf, spaces.Box):
        return leaf.low.astype(np.float64), leaf.high.astype(np.float64)
    if isinstance(leaf, spaces.MultiDiscrete):
        return leaf.start.astype(np.float64), (leaf.start + leaf.nvec - 1).astype(np.float64)
    if isinstance(leaf, spaces.Discrete):
        return float(leaf.start), float(leaf.start + leaf.n - 1)
    return 0.0, 1.0


def _described_policy(described: OnnxContent) -> tuple[PolicyMetadata, ActionHead]:
    try:
        metadata = PolicyMetadata.from_strings(described.metadata)
        head = head_of_kind(metadata.action_space, metadata.head, metadata.noise_scale)
        if metadata.mlp:
            MlpDescription.from_text(metadata.mlp)
    except (RelayRLError, ValueError, OverflowError, RecursionError) as error:
        raise ModelRefusedError(f"the model's metadata is not that of a policy: {error!s:.300}") from error
    return metadata, head


def _check_operators(described: OnnxContent, limits: ModelLimits) -> None:
    if not 3 <= described.ir_version <= MAX_IR_VERSION:
        raise ModelRefusedError(f"the file is of IR version {described.ir_version}, expected 3 to {MAX_IR_VERSION}")
    others = sorted(set(described.opsets) - {"", "ai.onnx"})
    if others or len(described.opsets) != 1:
        raise ModelRefusedError(f"the model uses operators of {', '.join(others)[:200] or 'no or several domains'}")
    (opset,) = described.opsets.values()
    if not 7 <= opset <= MAX_OPSET:
        raise ModelRefusedError(f"the model is of opset {opset}, expected 7 to {MAX_OPSET}")
    if not 0 < len(described.operators) <= limits.max_operators:
        raise ModelRefusedError(
            f"the graph has {len(described.operators)} nodes, more than {limits.max_operators} or none"
        )
    for operator in described.operators:
        if operator.domain not in ("", "ai.onnx") or operator.op_type not in OPERATORS:
            name = f"{operator.domain}.{operator.op_type}".lstrip(".")
            raise ModelRefusedError(f"the graph has the operator {name[:120]!r}, which policies may not have")


def _check_weights(described: OnnxContent, limits: ModelLimits) -> None:
    """What loading copies and computes ahead is bounded: weights are counted as often as they are used."""
    weights, computed, used = dict(described.weights), set[str](), 0
    for operator in described.operators:
        inputs, outputs = operator.inputs, operator.outputs
        if operator.op_type in _PACKING:
            used += sum(weights.get(name, 0) for name in inputs)
            if not computed.isdisjoint(inputs):
                raise ModelRefusedError(f"weights of a {operator.op_type} are computed; they must stand in the file")
        if operator.op_type == "Identity" and len(inputs) == len(outputs) == 1 and inputs[0] in weights:
            weights[outputs[0]] = weights[inputs[0]]  # how exporters write equal weights once
        elif inputs and all(name in weights or name in computed or not name for name in inputs):
            computed.update(outputs)
    if used > 2 * limits.max_bytes:
        raise ModelRefusedError(f"the graph uses {used} bytes of weights, counted as often as it uses them")


def _check_signature(described: OnnxContent, metadata: PolicyMetadata, head: ActionHead) -> None:
    """Inputs and outputs are exactly those that the metadata stands for."""
    inputs = {
        f"obs.{path}" if path else "obs": (_TYPES.get(leaf_dtype(leaf).str[1:], 0), tuple(leaf.shape or ()))
        for path, leaf in space_leaves(metadata.observation_space)
    }
    if metadata.masked:
        inputs["action_mask"] = _TYPES["b1"], (head.mask_width or 0,)
    if metadata.memory_width:
        inputs["memory"] = _FLOAT, (metadata.memory_width,)
    _check_values("inputs", described.inputs, inputs)
    names = {value.name for value in described.outputs}
    outputs: dict[str, tuple[int, tuple[int, ...]]] = {"distribution": (_FLOAT, (head.num_parameters,))}
    if "value" in names:
        outputs["value"] = _FLOAT, ()
    if metadata.memory_width:
        outputs["next_memory"] = _FLOAT, (metadata.memory_width,)
    actions = {action_name(path) for path, _ in space_leaves(metadata.action_space)}
    _check_values("outputs", tuple(each for each in described.outputs if each.name not in actions), outputs)


def _check_values(what: str, found: tuple[GraphValue, ...], expected: dict[str, tuple[int, tuple[int, ...]]]) -> None:
    names = [value.name for value in found]
    if names != list(expected) and (what == "inputs" or sorted(names) != sorted(expected)):
        raise ModelRefusedError(
            f"the graph's {what} are {', '.join(names)[:200]}, expected {', '.join(expected)[:200]}"
        )
    for value in found:
        data_type, shape = expected[value.name]
        if value.data_type != data_type:
            raise ModelRefusedError(f"{value.name[:80]!r} has ONNX data type {value.data_type}, expected {data_type}")
        axes = value.axes
        if axes is None and what == "outputs":  # what comes out is looked at
            continue
        free, *others = axes or (0,)
        wrong = free is not None or len(others) != len(shape)
        if wrong or any(axis not in (None, size) for axis, size in zip(others, shape, strict=True)):
            raise ModelRefusedError(f"{value.name[:80]!r} has axes {axes}, expected a free one and {shape}")


def _check_probe(
    content: bytes, described: OnnxContent, metadata: PolicyMetadata, head: ActionHead, limits: ModelLimits
) -> None:
    inputs = probe_inputs(metadata, head)
    wanted = [value.name for value in described.outputs]
    session = _session(content, limits)
    with _deadlines.within(limits.probe_timeout_s) as options:
        together = dict(zip(wanted, _run(session, wanted, inputs, options), strict=True))
        alone = dict(zip(wanted, _run(session, wanted, {k: v[-1:] for k, v in inputs.items()}, options), strict=True))
    shapes = {"distribution": (head.num_parameters,), "value": (), "next_memory": (metadata.memory_width,)}
    for name, shape in shapes.items():
        if name not in together:
            continue
        rows, one = together[name], alone[name]
        if rows.shape != (NUM_PROBE_ROWS, *shape) or one.shape != (1, *shape):
            raise ModelRefusedError(f"output {name!r} of {NUM_PROBE_ROWS} rows has shape {rows.shape}")
        if not np.isfinite(rows).all():
            raise ModelRefusedError(f"output {name!r} is NaN or infinite on the probe")
        if not _are_close(rows[-1:], one):
            raise ModelRefusedError(f"output {name!r} of a row depends on other rows")
    if metadata.probe:
        require_answer(together["distribution"], metadata, head)


def require_answer(distribution: Array, metadata: PolicyMetadata, head: ActionHead) -> None:
    """`ModelRefusedError` unless this is the exporter's answer to the probe."""
    expected = _expected(metadata.probe, head)
    if distribution.shape != expected.shape or not _are_close(distribution, expected):
        raise ModelRefusedError("the model answers the probe otherwise than its exporter says; the file is damaged")


def _expected(text: str, head: ActionHead) -> Array:
    shape = (NUM_PROBE_ROWS, head.num_parameters)
    try:
        given = json.loads(text)
        numbers = np.frombuffer(base64.b64decode(given["distribution"], validate=True), "<f4")
        if tuple(given["shape"]) != shape:
            raise ValueError(f"shape {given['shape']!r:.40}")
        return numbers.reshape(shape)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelRefusedError(f"the answer to the probe is damaged: {error!s:.200}") from error


def _are_close(a: Array, b: Array) -> bool:
    scale = max(1.0, float(np.abs(b).max(initial=0.0)))
    return bool(np.allclose(a, b, rtol=0.0, atol=TOLERANCE * scale))


def _session(content: bytes, limits: ModelLimits) -> Any:
    import onnxruntime as ort

    _bound_memory(limits.max_probe_bytes)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; whoever sent the file does not write to our log
    # Nothing is computed before the run, which has a deadline.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.use_env_allocators", "1")
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no public base class
        raise ModelRefusedError(f"onnxruntime does not load the model: {_first_line(error)}") from error


class Deadlines:
    """Stops runs that take too long, from one thread for all of them, which ends when it has had nothing to do for a while.

    Starting a thread for every probe would take longer than the probe.
    """

    def __init__(self, idle_s: float = 1.0) -> None:
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._open: dict[int, tuple[float, Any]] = {}
        self._thread: threading.Thread | None = None

    @property
    def is_watching(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    @contextlib.contextmanager
    def within(self, timeout_s: float) -> Iterator[Any]:
        """Options of runs that are stopped when the time is over."""
        import onnxruntime as ort

        options = ort.RunOptions()
        options.log_severity_level = 4
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        with self._changed:
            self._open[id(options)] = time.monotonic() + timeout_s, options
            if self._thread is None or not self._thread.is_alive():  # in a forked process it is not
                self._thread = threading.Thread(target=self._watch, name="relayrl-probe-deadlines", daemon=True)
                self._thread.start()
            elif timeout_s < self._idle_s:
                self._changed.notify()
        try:
            yield options
        finally:
            with self._changed:
                del self._open[id(options)]

    def _watch(self) -> None:
        with self._changed:
            idle_at_s = time.monotonic() + self._idle_s
            while self._open or time.monotonic() < idle_at_s:
                now_s = time.monotonic()
                for end_s, options in self._open.values():
                    if now_s >= end_s:
                        options.terminate = True
                if self._open:
                    idle_at_s = now_s + self._idle_s
                left_s = min((end_s - now_s for end_s, _ in self._open.values()), default=self._idle_s)
                self._changed.wait(min(max(left_s, _LOOK_S), self._idle_s))
            self._thread = None


_deadlines = Deadlines()


def _run(session: Any, wanted: list[str], inputs: dict[str, Array], options: Any) -> list[Array]:
    try:
        return list(session.run(wanted, inputs, options))
    except Exception as error:
        raise ModelRefusedError(f"the model cannot act on an observation of its space: {_first_line(error)}") from error


def _bound_memory(max_bytes: int) -> None:
    """Give the probes of this process an arena of their own that cannot grow beyond the bound; the first bound stays."""
    import onnxruntime as ort

    global _memory_bound
    with _memory_lock:
        if _memory_bound is None:
            info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
            ort.create_and_register_allocator(info, ort.OrtArenaCfg({"max_mem": max_bytes, "arena_extend_strategy": 1}))
            _memory_bound = max_bytes


def _first_line(error: Exception) -> str:
    return f"{error}".splitlines()[0][:300] if f"{error}" else type(error).__name__
