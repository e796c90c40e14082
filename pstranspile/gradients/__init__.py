"""Gradients of programs that overwrite variables: of which value each is, and what it takes to get it right."""
