"""Kernels in C for small MLPs on the CPU: acting, policy-gradient updates, advantages."""
