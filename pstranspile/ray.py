"""Jobs on a cluster of Ray's: the public name of `pstranspile.cluster.ray`."""

from typing import TYPE_CHECKING, Any

from pstranspile.cluster.ray import launch as launch

if TYPE_CHECKING:
    from pstranspile.cluster.ray import DatasetRows as DatasetRows

__all__ = ["DatasetRows", "launch"]


def __getattr__(name: str) -> Any:
    from pstranspile.cluster import ray

    return getattr(ray, name)
