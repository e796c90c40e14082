"""Machines of Fluid 1.8.5 in one job with those of this package, over Fluid's own gRPC service."""
