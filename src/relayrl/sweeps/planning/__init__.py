"""Which runs a sweep consists of: pure functions of its settings and of the results so far."""
