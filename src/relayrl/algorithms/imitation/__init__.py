"""Imitation: policies that learn to act as demonstrated."""
