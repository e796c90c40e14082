"""Jobs on a cluster of Ray's: Ray places, starts and watches the machines, which talk on their own wire.

`session` decides what happens when a host is lost (back to the last cut), `hosts` places and restarts the actors,
`cuts` and `moves` save and spread state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pstranspile.cluster.ray.launch import launch as launch

if TYPE_CHECKING:
    from pstranspile.cluster.ray.datasets import DatasetRows as DatasetRows

__all__ = ["DatasetRows", "launch"]


def __getattr__(name: str) -> Any:
    if name == "DatasetRows":  # needs Ray, which `launch` asks for itself
        from pstranspile.cluster.ray.datasets import DatasetRows

        return DatasetRows
    raise AttributeError(f"module {__name__} has no attribute {name}")
