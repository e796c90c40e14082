"""Generators of random numbers, and hashes."""
