"""Policies: networks, distributions, normalisation, acting without torch, and export."""
