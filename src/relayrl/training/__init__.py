"""Learning: trainers that schedule an algorithm, checkpoints, statistics and their writers."""
