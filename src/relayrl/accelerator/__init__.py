"""Accelerated twins of what torch computes, taken for exact types only."""
