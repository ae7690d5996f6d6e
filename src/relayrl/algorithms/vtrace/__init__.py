"""Algorithms that learn from what older policies did, corrected by V-trace."""
