"""Pictures of episodes: which frames, side by side, as animated files."""
