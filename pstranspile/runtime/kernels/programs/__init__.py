"""Kernels of ops: control flow, files, and communication."""
