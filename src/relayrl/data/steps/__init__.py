"""Writers of steps: lanes that step together, and lanes that each step for itself (docs/adr/0014)."""
