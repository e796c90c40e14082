"""Trainers that wait for each other by files in a folder of a hadoop cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pstranspile.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from pstranspile.fluid.incubate.fleet.utils.hdfs import HDFSClient
from pstranspile.fluid.missing import names_of_fluid

PAUSE = 10.0
"""Seconds between looks into the folder."""


def check_all_trainers_ready(ready_path: str, epoch: int) -> None:
    """Waits until every trainer has put a file for this epoch into the folder; a single one waits for nobody.

    `HADOOP_HOME`, `FS_NAME` and `FS_UGI` of the environment say where and as whom. Raises OSError.
    """
    count = fleet.worker_num()
    if count == 1:
        return
    mark = Path(f"ready.{epoch}.{fleet.worker_index()}.done")
    mark.write_text("")
    settings = {"fs.default.name": os.environ.get("FS_NAME"), "hadoop.job.ugi": os.environ.get("FS_UGI")}
    client = HDFSClient(os.environ.get("HADOOP_HOME"), settings)
    if not client.is_dir(ready_path):
        client.makedirs(ready_path)
    client.upload(ready_path, str(mark), overwrite=True)
    while sum(path.rpartition("/")[2].startswith(f"ready.{epoch}.") for path in client.ls(ready_path)) < count:
        time.sleep(PAUSE)


__getattr__ = names_of_fluid(__name__, globals())
