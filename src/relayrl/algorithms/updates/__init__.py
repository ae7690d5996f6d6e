"""How parameters are updated from rollouts and from replayed transitions, in torch."""
