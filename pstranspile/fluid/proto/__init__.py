"""Fluid's messages, as protobuf has them."""
