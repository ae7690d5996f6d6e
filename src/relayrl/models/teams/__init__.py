"""Policies of teams: they act alone, and a critic that sees the whole team values them."""
