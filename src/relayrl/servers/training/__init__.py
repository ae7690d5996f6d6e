"""The training server: takes trajectories of remote actors, keeps them, learns from them, publishes policies."""
