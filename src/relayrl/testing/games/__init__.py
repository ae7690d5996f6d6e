"""Games that are solved: what a policy could lose in them is computed, not estimated."""
