"""The trainer behind queues, with the names of Unity ML-Agents."""
