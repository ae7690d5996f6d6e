"""Adapters to other libraries: Gymnasium, PettingZoo, mpe2 and VMAS."""
