"""Declarations of ops: losses, metrics and optimizers."""
