"""Demonstrations that Unity's ML-Agents recorded, as a source of trajectories."""
