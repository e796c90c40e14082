"""Kernels of ops: ragged sequences, recurrent units, and labels of sequences."""
