"""`paddle.distributed.fleet.utils`: the file system of this host, and programs that look up rows on servers."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.missing import refused
from pstranspile.fluid.paddle.distributed.fs_wrapper import LocalFS as LocalFS
from pstranspile.fluid.paddle.later import not_there


class HDFSClient:
    """The later client of a hadoop cluster, which is refused."""

    def __init__(self, *_: Any, **__: Any):
        raise refused("fleet.utils.HDFSClient", "mount the cluster's file system, and take LocalFS")


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.distributed.fleet.utils.{name}", globals())
