"""Environment parameters: samplers, lessons, and how they reach environments."""
