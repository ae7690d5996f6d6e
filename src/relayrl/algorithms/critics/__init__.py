"""What critics see: one agent, or all of an environment."""
