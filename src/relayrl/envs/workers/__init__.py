"""Environments in worker processes: the pool, its links, and what runs inside a worker."""
