"""Kernels of ops: images and volumes, and normalisation."""
