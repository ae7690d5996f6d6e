"""Trajectories and rollouts as Arrow: schema, codec, and the limits of what is read."""
