"""What ML-Agents and Unity write, where environments and sinks both read it."""
