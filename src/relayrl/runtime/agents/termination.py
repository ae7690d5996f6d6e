"""Shutting down on SIGTERM, for programs that ask for it.

    with shutdown_on_signal(agent, deadline_s=20):
        …

The handler only starts a thread: the main thread may be inside the runtime, holding its locks. The agent then flushes while
the program's own threads get `AgentStateError` from further requests; afterwards the signal takes its former effect, which
for SIGTERM ends the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from relayrl.runtime.agents.agent import RelayRLAgent

_log = logging.getLogger("relayrl.runtime.agents.termination")
JOIN_TIMEOUT_S = 10.0


@contextlib.contextmanager
def shutdown_on_signal(
    agent: RelayRLAgent, deadline_s: float | None = None, signals: Sequence[signal.Signals] = (signal.SIGTERM,)
) -> Iterator[None]:
    """Shut `agent` down when one of `signals` comes. Enter it in the main thread."""
    former = {number: signal.getsignal(number) for number in signals}
    begun: list[threading.Thread] = []

    def finish(number: int) -> None:
        report = agent.shutdown(deadline_s)
        _log.info("shut down on a signal", extra={"signal": number, "clean": report.is_clean})
        restore.set()
        os.kill(os.getpid(), number)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if restore.is_set():
            signal.signal(number, former[signal.Signals(number)])
            signal.raise_signal(number)
        elif not begun:
            begun.append(threading.Thread(target=finish, args=(number,), name="relayrl-termination"))
            begun[0].start()

    restore = threading.Event()
    for number in signals:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for thread in begun:
            thread.join(JOIN_TIMEOUT_S + (deadline_s or agent.get_config().shutdown_deadline_s))
        for number, handler in former.items():
            signal.signal(number, handler)
