"""Sweeps: many runs of one configuration that differ in seeds and settings, as one piece of work that survives kills."""
