"""The agent and the managers behind it."""
