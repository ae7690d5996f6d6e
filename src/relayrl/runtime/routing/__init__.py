"""From recorded steps to sinks."""
