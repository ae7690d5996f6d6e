"""The trainer by trajectories: `RelayRLTrainer`, for programs that own their loop."""
