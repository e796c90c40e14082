"""Fluid's `incubate.fleet.utils`: what scripts of Fleet ask besides training."""
