"""Kernels of ops: other shapes of tensors, their parts, and new ones."""
