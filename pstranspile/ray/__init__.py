"""Jobs on a cluster of Ray's: Ray places, starts and watches the machines, which talk on their own wire."""

from pstranspile.ray.launch import launch as launch

__all__ = ["launch"]
