"""Benchmark rows: each measures a part of RelayRL against a floor or a peer in the same run. Used by `relayrl bench`."""
