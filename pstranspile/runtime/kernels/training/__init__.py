"""Kernels of ops: losses, metrics and optimizers."""
