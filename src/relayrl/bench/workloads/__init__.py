"""Whole runs as users start them: PPO, MAPPO and off-policy workloads, recording, and the start-up."""
