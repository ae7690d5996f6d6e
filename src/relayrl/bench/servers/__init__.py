"""Benchmarks of servers and their clients, and the network that they are tried on."""
