"""Self-play: the learner against snapshots of itself, and their ratings."""
