"""Unity simulators: the trainer's side of ML-Agents' communication protocol, as a vector environment."""
