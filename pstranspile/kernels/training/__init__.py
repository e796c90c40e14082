"""Kernels of ops: losses, measures and updates of parameters."""
