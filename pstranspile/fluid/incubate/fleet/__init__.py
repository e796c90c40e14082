"""Fluid's `incubate.fleet`: clusters described by role makers and strategies."""
