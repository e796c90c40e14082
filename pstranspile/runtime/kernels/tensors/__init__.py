"""Kernels of ops: reshaping, slicing and creation of tensors."""
