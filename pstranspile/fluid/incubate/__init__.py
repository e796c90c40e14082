"""Fluid's `incubate`."""
