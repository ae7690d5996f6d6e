"""Send a million mutated frames and report what they did: `python benchmarks/fuzz_frames.py`.

Prints one JSON object: how many frames were taken and refused, what memory grew by, and the latencies of a healthy client
while the server was attacked. Exit code 1 where anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time

import psutil

from relayrl.bench.servers.bench_processes import child_process, child_result, echoing, paced_call_times
from relayrl.bench.servers.frame_fuzzer import fuzz_decode, fuzz_socket, fuzz_stream
from relayrl.transport.limits import ClientLimits
from relayrl.transport.server_endpoint import ServerEndpoint

_MIB = 1 << 20


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
    """Cases over sockets, to a server in this process, beside a healthy client."""
    endpoint = ServerEndpoint("tcp://127.0.0.1:0", limits=ClientLimits(messages_per_s=1e9, handshake_timeout_s=2.0))
    with contextlib.closing(endpoint), echoing(endpoint):
        with child_result(paced_call_times, endpoint.address) as times:
            alone = times()
        before = memory_mib()
        with (
            child_process(fuzz_socket, endpoint.address, num_messages, seed),
            child_process(fuzz_stream, endpoint.address, num_streams, seed),
            child_result(paced_call_times, endpoint.address) as times,
        ):
            attacked = times()
        counts = {
            each.name.removeprefix("transport/"): each.value for each in endpoint.metrics.snapshot() if each.value
        }
        growth = memory_mib() - before
    return {
        "sent": num_messages,
        "streams": num_streams,
        "growth_mib": round(growth, 1),
        "p50_ms": round(statistics.median(attacked) * 1e3, 2),
        "p99_ms": round(statistics.quantiles(attacked, n=100)[98] * 1e3, 2),
        "p99_alone_ms": round(statistics.quantiles(alone, n=100)[98] * 1e3, 2),
        "counts": counts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decode", type=int, default=1_000_000, help="cases for the decoder")
    parser.add_argument("--messages", type=int, default=50_000, help="messages over a socket")
    parser.add_argument("--streams", type=int, default=2_000, help="connections that break ZMTP")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = {
        "decode": decoding(options.decode, options.seed),
        "server": serving(options.messages, options.streams, options.seed),
    }
    print(json.dumps(report, indent=1))
    return 0 if not report["decode"]["wrong"] else 1


if __name__ == "__main__":
    sys.exit(main())
