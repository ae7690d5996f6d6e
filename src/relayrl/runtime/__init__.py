"""Acting: the collector that steps a vector environment with a policy."""
