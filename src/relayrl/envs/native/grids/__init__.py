"""Grids of cells: one agent that walks from cell to cell."""
