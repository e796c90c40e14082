"""Kernels of ops: functions of tensors, products, sums and comparisons."""
