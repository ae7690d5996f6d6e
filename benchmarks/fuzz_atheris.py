"""Coverage-guided fuzzing of the decoder: `python benchmarks/fuzz_atheris.py -max_total_time=60`.

Needs `pip install atheris`, which no other part does. Arguments are libFuzzer's. It ends with a traceback at the first input
that does anything else than decode, or be refused.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["relayrl.transport", "json"]):
    from relayrl.errors import ProtocolError
    from relayrl.transport.messages import decode, encode


def one_input(data: bytes) -> None:
    """The first byte says where frames end; the rest are their bytes."""
    provider = atheris.FuzzedDataProvider(data)
    num_frames = provider.ConsumeIntInRange(0, 4)
    frames = [provider.ConsumeBytes(provider.ConsumeIntInRange(0, 200)) for _ in range(num_frames)]
    if frames and provider.ConsumeBool():  # most first frames would fail at once
        frames[0] = b"RLY\x01" + frames[0][:12].ljust(12, b"\0")
    try:
        message = decode(frames)
    except ProtocolError:
        return
    if decode(encode(message)) != message:
        raise AssertionError(f"{message} comes back as another message")


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
