"""Checkpoints of Fleet without servers: folders, numbered, each with the variables and the epoch that was done."""

from __future__ import annotations

import json
import os
from typing import Any

from pstranspile.fluid import io
from pstranspile.fluid.paddle.distributed.fs_wrapper import FS, LocalFS

PREFIX = "__paddle_fleet_checkpoint__"
PARAMS = "_paddle_fleet_param__"
STATUS = "fleet_train_status"


class TrainStatus:
    """How far training has come: the last epoch that was done, -1 for none."""

    def __init__(self, epoch_no: int = -1):
        self._epoch_no = epoch_no

    def next(self) -> int:
        """The epoch to go on with."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    __hash__ = None  # type: ignore[assignment]


class Checkpoints:
    """What `fleet` has for checkpoints; the class it is mixed into knows the program."""

    _transpiled_program: Any = None

    def _get_last_checkpoint_no(self, root_path: str, fs: FS) -> int:
        """The number of the newest checkpoint in a folder, -1 for none."""
        return max(_numbers(root_path, fs), default=-1)

    def clean_redundant_check_points(self, root_path: str, fs: FS | None = None, checkpoint_num: int = 1) -> None:
        """Takes away all checkpoints of a folder but the newest ones."""
        fs = fs or LocalFS()
        for number in sorted(_numbers(root_path, fs))[: -max(checkpoint_num, 1)]:
            fs.rmr(f"{root_path}/{PREFIX}.{number}")

    def save_check_point(
        self,
        executor: Any,
        path: str,
        train_status: TrainStatus,
        main_program: Any = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Writes the next checkpoint; it has its name when it is complete. The others stay if they are to remain."""
        fs = fs or LocalFS()
        if not fs.stat(path):
            fs.mkdir(path)
        made = f"{path}/{PREFIX}.{self._get_last_checkpoint_no(path, fs) + 1}"
        written = f"{made}.tmp"
        here = os.path.join(local_cache_path, os.path.basename(written)) if fs.need_upload_download() else written
        os.makedirs(here, exist_ok=True)
        io.save_persistables(executor, here, main_program or self._transpiled_program, PARAMS)
        with open(os.path.join(here, STATUS), "w") as file:
            json.dump({"epoch_no": train_status.next() - 1}, file)
        if fs.need_upload_download():
            fs.delete(written)
            fs.upload(here, written)
        fs.mv(written, made)
        if not remain_all_checkpoint:
            self.clean_redundant_check_points(path, fs)

    def load_check_point(
        self,
        executor: Any,
        path: str,
        trainer_id: int,
        main_program: Any = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Reads the newest checkpoint; gives how far it was, or None for a folder without one.

        Raises FileNotFoundError in place of None unless `ignore_empty`.
        """
        fs = fs or LocalFS()
        number = self._get_last_checkpoint_no(path, fs)
        if number < 0:
            if not ignore_empty:
                raise FileNotFoundError(f"{path} holds no checkpoint")
            return None
        here = f"{path}/{PREFIX}.{number}"
        if fs.need_upload_download():
            source, here = here, os.path.join(local_cache_path, f"{PREFIX}.{number}.{trainer_id}")
            LocalFS().delete(here)
            fs.download(source, here)
        io.load_persistables(executor, here, main_program or self._transpiled_program, PARAMS)
        with open(os.path.join(here, STATUS)) as file:
            return TrainStatus(int(json.load(file)["epoch_no"]))


def _numbers(root_path: str, fs: FS) -> list[int]:
    parts = (name.partition(".") for name in fs.list_dirs(root_path))
    return [int(number) for prefix, _, number in parts if prefix == PREFIX and number.isdecimal()]
