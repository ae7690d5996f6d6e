"""Columns of steps: trees, `Trajectory`, `Rollout`, their builders, the Arrow schema and its codec."""
