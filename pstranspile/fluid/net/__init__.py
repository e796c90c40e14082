"""Connects machines of Fluid 1.8.5 with machines of this package in one job, over Fluid's own gRPC service."""
