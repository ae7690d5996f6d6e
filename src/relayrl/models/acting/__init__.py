"""Observations in, actions out."""
