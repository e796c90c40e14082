"""Gradients of programs that overwrite variables: the value that each gradient belongs to."""
