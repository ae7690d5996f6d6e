"""Commands with the options of Unity ML-Agents."""
