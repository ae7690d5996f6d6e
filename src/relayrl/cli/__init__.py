"""The `relayrl` command."""
