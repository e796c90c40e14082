"""Kernels of ops: embeddings and what goes with them."""
