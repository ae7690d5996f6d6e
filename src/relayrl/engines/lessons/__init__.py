"""Curricula of a run."""
