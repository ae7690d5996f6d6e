"""Training and inference for actors of other processes and machines."""
