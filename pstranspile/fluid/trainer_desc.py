"""Messages that describe samples and trainings.

In Fluid they are in `data_feed_desc`, `device_worker`, `trainer_desc` and `trainer_factory`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pstranspile.fluid import proto
from pstranspile.fluid.missing import names_of_fluid


class DataFeedDesc:
    """A description of the layout of samples, read from a file. Raises OSError for a file that can't be read,
    ParseError for a file with other text.
    """

    def __init__(self, proto_file: str):
        from google.protobuf import text_format

        self.proto_desc: Any = proto.DataFeedDesc(pipe_command="cat")
        text_format.Parse(Path(proto_file).read_text(encoding="utf-8"), self.proto_desc)

    def set_batch_size(self, batch_size: int) -> None:
        """Sets the number of samples in a batch."""
        self.proto_desc.batch_size = batch_size

    def _slots(self, names: Sequence[str]) -> list[Any]:
        """The slots with these names. Raises ValueError if the samples have no slots, KeyError for unknown names."""
        if self.proto_desc.name != "MultiSlotDataFeed":
            raise ValueError(f"only a MultiSlotDataFeed has slots, {self.proto_desc.name!r} has none")
        slots = {slot.name: slot for slot in self.proto_desc.multi_slot_desc.slots}
        return [slots[name] for name in names]

    def set_dense_slots(self, dense_slots_name: Sequence[str]) -> None:
        """Marks slots as dense: they have the same number of values in every sample. Raises ValueError and KeyError as
        `_slots`.
        """
        for slot in self._slots(dense_slots_name):
            slot.is_dense = True

    def set_use_slots(self, use_slots_name: Sequence[str]) -> None:
        """Marks slots as used. Raises ValueError and KeyError as `_slots`."""
        for slot in self._slots(use_slots_name):
            slot.is_used = True

    def desc(self) -> str:
        """The description as protobuf text."""
        from google.protobuf import text_format

        return text_format.MessageToString(self.proto_desc)


class DeviceWorker:
    """The base class of workers: stores the program and its settings."""

    def __init__(self) -> None:
        self._program: Any = None
        self._infer: bool | None = None
        self._fleet_desc: Any = None

    def _set_infer(self, infer: bool = False) -> None:
        self._infer = infer

    def _set_fleet_desc(self, fleet_desc: Any) -> None:
        self._fleet_desc = fleet_desc

    def _set_program(self, program: Any) -> None:
        self._program = program

    def _gen_worker_desc(self, trainer_desc: Any) -> None:
        """Raises NotImplementedError, as in Fluid, because each class of workers completes the message itself."""
        raise NotImplementedError(f"{type(self).__name__} must define _gen_worker_desc(trainer_desc), as Hogwild does")


class Hogwild(DeviceWorker):
    """A worker whose threads all run the program and share the parameters."""

    def _gen_worker_desc(self, trainer_desc: Any) -> None:
        """Sets the name of the worker in a message, and the ops that it skips."""
        trainer_desc.device_worker_name = "HogwildWorker"
        if self._infer:
            trainer_desc.hogwild_param.skip_ops.append("feed")


class DeviceWorkerFactory:
    """Makes workers by the names of their classes."""

    def _create_device_worker(self, worker_type: str) -> Any:
        """A worker of the class with this name. Raises NotHere for the workers of pslib and of pipelines,
        AttributeError for an unknown name.
        """
        return getattr(sys.modules[__name__], worker_type.capitalize())()


class TrainerDesc:
    """A description of a training, which scripts set up, as a message `TrainerDesc`; `str` returns its text."""

    def __init__(self) -> None:
        self.proto_desc = proto.TrainerDesc(thread_num=os.cpu_count() or 1)
        self._fleet_desc: Any = None
        self._device_worker: Any = None
        self._program: Any = None
        self._infer = False

    def _set_fetch_var_and_info(self, fetch_vars: Sequence[Any], fetch_info: Sequence[str], print_period: int) -> None:
        """Sets the variables that are printed every `print_period` steps, each with its text."""
        config = self.proto_desc.fetch_config
        config.fetch_var_names.extend(var.name for var in fetch_vars)
        config.fetch_var_str_format.extend(list(fetch_info)[: len(fetch_vars)])
        config.print_period = print_period

    def _set_thread(self, thread_num: int) -> None:
        self.proto_desc.thread_num = thread_num

    def _set_device_worker(self, device_worker: Any) -> None:
        self._device_worker = device_worker

    def _set_infer(self, infer: bool) -> None:
        self._infer = infer

    def _set_fleet_desc(self, fleet_desc: Any) -> None:
        self._fleet_desc = fleet_desc

    def _set_program(self, program: Any) -> None:
        self._program = program

    def _gen_trainer_desc(self) -> None:
        """Completes the message: the class of the training, and the worker's settings."""
        if type(self) is TrainerDesc:
            return
        self.proto_desc.class_name = type(self).__name__
        if self._program is None:
            raise RuntimeError("None Program")
        self._device_worker._set_infer(self._infer)
        self._device_worker._set_program(self._program)
        self._device_worker._gen_worker_desc(self.proto_desc)

    def _set_adjust_ins_weight(self, config_dict: Mapping[str, Any]) -> None:
        """Sets the weights of samples, by the names of fields."""
        config = self.proto_desc.adjust_ins_weight_config
        for field in config.DESCRIPTOR.fields:
            setattr(config, field.name, config_dict.get(field.name, field.default_value))

    def _set_copy_table_config(self, config_dict: Mapping[str, Any]) -> None:
        """Sets which tables or variables are copied to which others. Raises ValueError where their numbers differ."""
        config = self.proto_desc.copy_table_config
        config.need_copy = config_dict.get("need_copy", False)
        config.batch_num = config_dict.get("batch_num", 100)
        for kind in ("sparse_tables", "dense_tables", "var_list"):
            ends = {end: _as_list(config_dict.get(f"{end}_{kind}", [])) for end in ("src", "dest")}
            if len(ends["src"]) != len(ends["dest"]):
                counts = f"{len(ends['src'])} vs {len(ends['dest'])}"
                raise ValueError(f"len(src_{kind}) != len(dest_{kind}), {counts}")
            for end, items in ends.items():
                getattr(config, f"{end}_{kind}").extend(items)
        for key, values in config_dict.get("dependency_map", {}).items():
            if len(_as_list(values)) != 1:
                raise ValueError(f"dependency len {len(values)} != 1")
            config.table_denpendency_map.add(key=key, values=_as_list(values))
        config.dense_pull_after_copy = config_dict.get("dense_pull_after_copy", True)
        config.enable_dependency = config_dict.get("enable_dependency", False)
        config.sparse_copy_by_feasign = config_dict.get("sparse_copy_by_feasign", True)

    def _desc(self) -> bytes:
        """The message as bytes."""
        return self.proto_desc.SerializeToString()

    def __str__(self) -> str:
        from google.protobuf import text_format

        return text_format.MessageToString(self.proto_desc)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]


def _setter(field: str) -> Callable[[TrainerDesc, Any], None]:
    """A method that sets a field of the message; values of a repeated field are added."""

    def set_field(self: TrainerDesc, value: Any) -> None:
        held = getattr(self.proto_desc, field)
        if hasattr(held, "extend"):
            held.extend(value)
        else:
            setattr(self.proto_desc, field, value)

    return set_field


for _field in (
    *("debug", "use_cvm", "no_cvm", "scale_datanorm", "dump_slot", "mpi_rank", "mpi_size", "dump_fields"),
    *("dump_fields_path", "dump_file_num", "dump_converter", "dump_param", "thread_barrier"),
    *("check_nan_var_names", "loss_names"),
):
    setattr(TrainerDesc, f"_set_{_field}", _setter(_field))


class MultiTrainer(TrainerDesc):
    """A training by several threads of one process."""


class DistMultiTrainer(TrainerDesc):
    """A training by several threads of a machine of a cluster."""


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
        """The description that options select: by default a `MultiTrainer` with workers `Hogwild`.

        Raises NotHere for a class of Fluid that this package lacks, AttributeError for an unknown one.
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


__getattr__ = names_of_fluid(__name__, globals())
