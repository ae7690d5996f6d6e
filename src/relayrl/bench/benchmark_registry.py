"""Every benchmark by name, for `relayrl bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from relayrl.bench.rows import Row
from relayrl.errors import UnknownNameError


def _codec() -> list[Row]:
    from relayrl.bench.codec_rows import codec_rows

    return codec_rows()


def _envs() -> list[Row]:
    from relayrl.bench.env_rows import env_rows
    from relayrl.bench.native_env_rows import native_env_rows

    return [*env_rows(), *native_env_rows()]


def _gpu() -> Iterable[Row]:
    from relayrl.bench.gpu.gpu_rows import gpu_rows

    return gpu_rows()


def _images() -> list[Row]:
    from relayrl.bench.workloads.image_rows import image_rows

    return image_rows()


def _inference() -> list[Row]:
    from relayrl.bench.servers.inference_rows import inference_rows

    return inference_rows()


def _learners() -> list[Row]:
    from relayrl.bench.workloads.learner_rows import learner_rows

    return learner_rows()


def _metrics() -> list[Row]:
    from relayrl.bench.metric_rows import metric_rows

    return metric_rows()


def _replay() -> list[Row]:
    from relayrl.bench.replay_sampling import replay_rows

    return replay_rows()


def _runtime() -> list[Row]:
    from relayrl.bench.runtime_rows import runtime_rows

    return runtime_rows()


def _recording() -> list[Row]:
    from relayrl.bench.workloads.recording_rows import recording_rows

    return recording_rows()


def _servers() -> list[Row]:
    from relayrl.bench.servers.training_rows import training_rows
    from relayrl.bench.servers.transport_rows import transport_rows

    return [*transport_rows(), *training_rows()]


def _signals() -> list[Row]:
    from relayrl.bench.workloads.signal_rows import signal_rows

    return signal_rows()


def _sinks() -> list[Row]:
    from relayrl.bench.sink_rows import sink_rows

    return sink_rows()


def _teams() -> list[Row]:
    from relayrl.bench.workloads.poca_rows import poca_rows

    return poca_rows()


def _w1() -> list[Row]:
    from relayrl.bench.workloads.ppo_rows import ppo_rows

    return ppo_rows("W1", num_envs=8, num_steps=30 * 8 * 128)


def _w2() -> list[Row]:
    from relayrl.bench.workloads.ppo_rows import ppo_rows

    return ppo_rows("W2", num_envs=64, num_steps=10 * 64 * 128)


def _w2k() -> list[Row]:
    from relayrl.bench.workloads.native_ppo_rows import w2k_rows

    return w2k_rows()


def _w4() -> list[Row]:
    from relayrl.bench.workloads.native_ppo_rows import w4_rows

    return w4_rows()


def _startup() -> list[Row]:
    from relayrl.bench.workloads.startup_rows import startup_rows

    return startup_rows()


def _w5() -> list[Row]:
    from relayrl.bench.workloads.off_policy_rows import off_policy_rows

    return off_policy_rows()


BENCHMARKS: dict[str, Callable[[], Iterable[Row]]] = {
    "codec": _codec,
    "envs": _envs,
    "gpu": _gpu,
    "images": _images,
    "inference": _inference,
    "learners": _learners,
    "metrics": _metrics,
    "recording": _recording,
    "replay": _replay,
    "runtime": _runtime,
    "servers": _servers,
    "signals": _signals,
    "sinks": _sinks,
    "startup": _startup,
    "teams": _teams,
    "W1": _w1,
    "W2": _w2,
    "W2k": _w2k,
    "W4": _w4,
    "W5": _w5,
}


def benchmark(name: str) -> Callable[[], Iterable[Row]]:
    """The benchmark of that name; an unknown one raises with the nearest."""
    if name not in BENCHMARKS:
        raise UnknownNameError("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]
