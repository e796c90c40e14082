"""Fluid's `trainer_factory`: the description of a training from the options of a program."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.more.device_worker import Hogwild as Hogwild
from pstranspile.fluid.more.trainer_desc import DistMultiTrainer as DistMultiTrainer
from pstranspile.fluid.more.trainer_desc import MultiTrainer as MultiTrainer

_OPTIONS = (
    *("dump_slot", "mpi_rank", "mpi_size", "dump_fields", "dump_fields_path", "dump_file_num", "dump_converter"),
    "dump_param",
)
_OPTIONS_OF_PSLIB = (
    *("use_cvm", "no_cvm", "scale_datanorm", "adjust_ins_weight", "copy_table", "check_nan_var_names", "loss_names"),
)


class TrainerFactory:
    """Makes descriptions of trainings."""

    def _create_trainer(self, opt_info: Mapping[str, Any] | None = None) -> Any:
        """The description that options ask for: by default a `MultiTrainer` whose threads are `Hogwild`.

        Raises NotHere for a class of Fluid that is not here, AttributeError for one that there is not.
        """
        here = sys.modules[__name__]
        options = opt_info or {"trainer": "MultiTrainer", "device_worker": "Hogwild"}
        trainer, worker = getattr(here, options["trainer"])(), getattr(here, options["device_worker"])()
        names = _OPTIONS
        if "fleet_desc" in options:
            for each in (worker, trainer):
                each._set_fleet_desc(options["fleet_desc"])
            names += _OPTIONS_OF_PSLIB
        for name in names:
            if options.get(name) is not None:
                getattr(trainer, f"_set_{name}_config" if name == "copy_table" else f"_set_{name}")(options[name])
        trainer._set_device_worker(worker)
        return trainer


__getattr__ = names_of_fluid("pstranspile.fluid.trainer_factory", vars(sys.modules[__name__]))
