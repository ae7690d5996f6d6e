"""Particle worlds: discs that push, collide and speak on a plane (Lowe et al. 2017; Mordatch and Abbeel 2017)."""
