"""The trainer: takes rollouts or trajectories and learns; and the one place that builds it from settings."""
