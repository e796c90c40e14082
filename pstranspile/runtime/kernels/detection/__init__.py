"""Kernels of ops that find objects in images."""
