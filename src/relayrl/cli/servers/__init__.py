"""Commands of servers and their clients."""
