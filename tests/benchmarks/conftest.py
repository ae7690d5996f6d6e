"""The comparisons with peers are folders of scripts, not packages: their modules are found where the scripts find them."""

import sys
from pathlib import Path

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
sys.path += [str(PEERS), str(PEERS / "workers"), str(PEERS.parent), str(PEERS.parent / "gpu")]
