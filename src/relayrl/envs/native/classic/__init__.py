"""Classic control: one agent, a handful of numbers per world."""
