"""Training on a GPU beside JAX programs and plain torch, and the synthetic environments of that work."""
