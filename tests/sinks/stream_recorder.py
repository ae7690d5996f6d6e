"""Stores streams as they came, a flush of several hundred KB after the other, until it is killed; prints each flush's numbers.

python stream_recorder.py URL CLIENT_ID FIRST_NUMBER
"""

import itertools
import sys
from uuid import UUID

from relayrl.bench.servers.trajectory_producer import numbered_trajectory
from relayrl.data.arrow.checked_streams import StreamPlans
from relayrl.data.arrow.codec import encode_block
from relayrl.sinks.buffered import checked_blocks
from relayrl.sinks.contract import open_sink

url, client_id, first = sys.argv[1], UUID(sys.argv[2]), int(sys.argv[3])
plans, sink = StreamPlans(), open_sink(url)
for begin in itertools.count(first, 8):
    for number in range(begin, begin + 8):
        (block,) = checked_blocks([numbered_trajectory(client_id, number, 500 + number % 7)])
        plans.add(block)
        stream = plans.check(bytes(encode_block(block)))
        assert stream is not None
        sink.write_stream(stream)
    sink.flush()
    print(begin + 8, flush=True)
