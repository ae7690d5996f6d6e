"""Seeing what a program does: structured logs, metrics with exporters, and a sampling profiler."""
