"""From a request to an action."""
