"""`paddle.distributed.fleet` of the first 2.x versions: `init`, then the functions of Fluid's Fleet under one name."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.dataset import DatasetBase as DatasetBase
from pstranspile.fluid.incubate.data_generator import MultiSlotDataGenerator as MultiSlotDataGenerator
from pstranspile.fluid.incubate.data_generator import MultiSlotStringDataGenerator as MultiSlotStringDataGenerator
from pstranspile.fluid.paddle.distributed import InMemoryDataset as InMemoryDataset
from pstranspile.fluid.paddle.distributed import QueueDataset as QueueDataset
from pstranspile.fluid.paddle.distributed.fleet import metrics as metrics
from pstranspile.fluid.paddle.distributed.fleet import one_fleet
from pstranspile.fluid.paddle.distributed.fleet import utils as utils
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Fleet as Fleet
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import PaddleCloudRoleMaker as PaddleCloudRoleMaker
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Role as Role
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import UserDefinedRoleMaker as UserDefinedRoleMaker
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import UtilBase as UtilBase
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import fleet as fleet
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy as DistributedStrategy

role_maker = one_fleet
"""Fleet's module of role makers."""

util = fleet.util


def __getattr__(name: str) -> Any:
    if (not name.startswith("_") or name == "_final_strategy") and hasattr(Fleet, name):
        return getattr(fleet, name)
    from pstranspile.fluid.paddle.later import not_there

    raise not_there(f"paddle.distributed.fleet.{name}", [*globals(), *vars(Fleet)])
