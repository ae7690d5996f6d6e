"""Kernels in C for small perceptrons on the CPU: acting, policy-gradient updates, advantages."""
