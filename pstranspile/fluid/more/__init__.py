"""Modules of Fluid that few scripts import: `paddle.fluid.NAME` is `more.NAME`."""
