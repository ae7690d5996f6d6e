"""Wrappers around environments that settings name: one environment at a time, or all of them in one call."""
