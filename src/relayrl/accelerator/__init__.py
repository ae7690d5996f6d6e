"""Faster twins of the reference: compiled kernels for exactly the plans that they know, held to torch by tests."""
