"""Grids of cells: rooms for one agent, and worlds whose team is paid after some of its agents have gone."""
