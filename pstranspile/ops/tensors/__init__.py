"""Declarations of ops: other shapes of tensors, their parts, and new ones."""
