"""Runs on disk: the run directory, what it holds, who may read it, and how a run continues from it."""
