"""Imitation beside reinforcement learning: demonstrations, and cloning steps between updates."""
