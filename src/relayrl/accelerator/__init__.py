"""Kernels that stand in for the reference: MLPs on the CPU, recognised exactly, run compiled. To all else it says no."""
