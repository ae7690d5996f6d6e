"""The scenarios: what the agents of each particle world see and earn."""
