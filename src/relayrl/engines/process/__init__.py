"""The process around a run: signals, the garbage collector, and the line that shows progress."""
