"""Fluid's `paddle.distributed`: launchers."""
