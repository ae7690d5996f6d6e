"""Send a million mutated messages, and decode as many, and report what they did: `python benchmarks/fuzz_frames.py`.

Prints one JSON object: how many frames were taken and refused, what memory grew by, and the latencies of a healthy client
while the server was attacked. Exit code 1 where anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import psutil

from relayrl.bench.servers.bench_processes import child_process, child_result, echoing, paced_call_times
from relayrl.bench.servers.frame_fuzzer import fuzz_decode, fuzz_socket, fuzz_stream
from relayrl.transport.limits import ClientLimits
from relayrl.transport.server_endpoint import ServerEndpoint

_MIB = 1 << 20
_ATTACK_TIMEOUT_S = 900.0


def memory_mib() -> float:
    return psutil.Process().memory_info().rss / _MIB


def decoding(num_cases: int, seed: int) -> dict[str, object]:
    """Cases in this process."""
    fuzz_decode(10_000, seed)
    before, start_s = memory_mib(), time.perf_counter()
    counts = fuzz_decode(num_cases, seed + 1)
    return {
        "decoded": num_cases,
        "taken": counts.num_taken,
        "refused": counts.num_refused,
        "wrong": counts.num_wrong,
        "growth_mib": round(memory_mib() - before, 1),
        "seconds": round(time.perf_counter() - start_s, 1),
    }


def serving(num_messages: int, num_streams: int, seed: int) -> dict[str, object]:
    """Cases over sockets, to a server in this process, beside a healthy client.

    Attackers also take processors away from whoever runs beside them. So the client's latencies are read three times: alone,
    while the same attackers attack a server of another process, and while they attack its own.
    """
    limits = ClientLimits(messages_per_s=1e9, handshake_timeout_s=2.0)
    endpoint = ServerEndpoint("tcp://127.0.0.1:0", limits=limits)
    with contextlib.closing(endpoint), echoing(endpoint):
        alone = healthy_times(endpoint.address)
        with other_server(limits) as other_address, attackers(other_address, 1 << 40, 1 << 40, seed):
            beside = healthy_times(endpoint.address)
        before, start_s = memory_mib(), time.perf_counter()
        with attackers(endpoint.address, num_messages, num_streams, seed) as processes:
            attacked = healthy_times(endpoint.address)
            for process in processes:
                process.join(_ATTACK_TIMEOUT_S)
        seconds = time.perf_counter() - start_s
        counts = {
            each.name.removeprefix("transport/"): each.value for each in endpoint.metrics.snapshot() if each.value
        }
        growth = memory_mib() - before
    return {
        "sent": num_messages,
        "streams": num_streams,
        "all_taken": [process.exitcode for process in processes] == [0, 0],
        "seconds": round(seconds, 1),
        "growth_mib": round(growth, 1),
        **{
            f"{name}_ms": latencies(times)
            for name, times in (("alone", alone), ("beside", beside), ("attacked", attacked))
        },
        "counts": counts,
    }


def healthy_times(address: str) -> list[float]:
    with child_result(paced_call_times, address) as times:
        return times()


def latencies(times: list[float]) -> dict[str, float]:
    return {
        "p50": round(statistics.median(times) * 1e3, 2),
        "p99": round(statistics.quantiles(times, n=100)[98] * 1e3, 2),
    }


@contextlib.contextmanager
def attackers(address: str, num_messages: int, num_streams: int, seed: int) -> Iterator[list[BaseProcess]]:
    """One process that sends mutated messages and one that sends mutated ZMTP; both end with the block."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(child_process(fuzz_socket, address, num_messages, seed)),
            stack.enter_context(child_process(fuzz_stream, address, num_streams, seed)),
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.terminate()


@contextlib.contextmanager
def other_server(limits: ClientLimits) -> Iterator[str]:
    """A server like this one, in another process."""
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    with receiver, child_process(_serve, sender, limits) as process:
        yield receiver.recv()
        process.terminate()


def _serve(sender: Connection, limits: ClientLimits) -> None:
    endpoint = ServerEndpoint("tcp://127.0.0.1:0", limits=limits)
    with contextlib.closing(endpoint), echoing(endpoint):
        sender.send(endpoint.address)
        threading.Event().wait(_ATTACK_TIMEOUT_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decode", type=int, default=1_000_000, help="cases for the decoder")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages over a socket")
    parser.add_argument("--streams", type=int, default=2_000, help="connections that break ZMTP")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = {
        "decode": decoding(options.decode, options.seed),
        "server": serving(options.messages, options.streams, options.seed),
    }
    print(json.dumps(report, indent=1))
    return 0 if not report["decode"]["wrong"] and report["server"]["all_taken"] else 1


if __name__ == "__main__":
    sys.exit(main())
