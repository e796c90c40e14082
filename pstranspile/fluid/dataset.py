"""Fluid's `dataset`: files that a command converts to samples, on which programs are trained."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pstranspile.cluster.data.text_files import LONGEST
from pstranspile.fluid.graph.values import numpy_name
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.missing import names_of_fluid, unsupported_error
from pstranspile.ir.user_warnings import warn
from pstranspile.runtime.values import fetched_text

_ONE_BY_ONE = "samples are trained one by one, not merged into page views"

Sample = list[list[Any]]
"""The values of each variable as numbers, followed by the id as text if lines begin with one."""

_LOWEST = -(1 << 63)
"""The smallest signed id of 64 bits."""

_BEYOND = 1 << 64
"""The smallest number that is too large for an unsigned id of 64 bits."""

_NOTHING = 1e-6
"""The least absolute value of a float that an `InMemoryDataset` keeps, as in Fluid."""


class DatasetFactory:
    """Makes data sets by the names of their classes."""

    def create_dataset(self, datafeed_class: str = "QueueDataset") -> DatasetBase:
        """A data set of the class with this name. Raises ValueError for an unknown class, NotHere for BoxPS's."""
        if datafeed_class == "BoxPSDataset":
            raise unsupported_error(datafeed_class, "data sets are InMemoryDataset and QueueDataset")
        kinds = {cls.__name__: cls for cls in (QueueDataset, InMemoryDataset, FileInstantDataset)}
        if datafeed_class not in kinds:
            raise ValueError(f"a data set is a {' or an '.join(kinds)}, not a {datafeed_class}")
        return kinds[datafeed_class]()


class DatasetBase:
    """Files, a command, and the variables that samples have values for.

    The command reads a file from its standard input and writes a line for each sample: for every variable, in order,
    the number of its values, followed by these.
    """

    feed_name = "MultiSlotDataFeed"
    """Fluid's name for the reader of samples."""

    def __init__(self) -> None:
        self.batch_size, self.pipe_command = 32, "cat"
        self._has_size = False
        self.filelist: list[str] = []
        self.use_vars: list[Variable] = []
        self.download_cmd = ""
        self.thread_num = self.trainer_num = 0
        self._hdfs = "", ""
        self.hdfs_command = ["hadoop", "fs"]
        self.parse_ins_id = self.parse_content = self.fea_eval = False

    def fetched_texts(self, batch: int, infos: Sequence[str], names: Sequence[str], values: Sequence[Any]) -> list[str]:
        """The texts that are printed about the fetched variables after a batch, from their labels, names and values."""
        return [fetched_text(*one) for one in zip(infos, names, values, strict=True)]

    def set_pipe_command(self, pipe_command: str) -> None:
        """Sets the command that converts a file to lines of samples (default: `cat`)."""
        self.pipe_command = pipe_command

    def set_batch_size(self, batch_size: int) -> None:
        """Sets the number of samples in a batch (default: 32)."""
        self.batch_size, self._has_size = batch_size, True

    @property
    def dataset(self) -> DatasetBase:
        """The data set itself, because scripts call functions of Fluid's C++ core on this attribute."""
        return self

    def set_thread(self, thread_num: int) -> None:
        """Sets Fluid's number of threads, which has no effect, because files are read one after the other."""
        self.thread_num = thread_num

    set_thread_num = set_thread

    def get_thread_num(self) -> int:
        """The number of threads that was set, 0 if none was."""
        return self.thread_num

    def set_trainer_num(self, trainer_num: int) -> None:
        """Sets Fluid's number of trainers, which has no effect, because scripts assign files to trainers."""
        self.trainer_num = trainer_num

    def get_trainer_num(self) -> int:
        """The number of trainers that was set, 0 if none was."""
        return self.trainer_num

    def set_filelist(self, filelist: list[str]) -> None:
        """Sets the files, which are read in order."""
        self.filelist = list(filelist)

    def get_filelist(self) -> list[str]:
        """The files."""
        return list(self.filelist)

    def set_use_var(self, var_list: list[Variable]) -> None:
        """Sets the variables. Raises ValueError for one that is neither float32 nor int64."""
        for var in var_list:
            if numpy_name(var.dtype) not in ("float32", "int64"):
                raise ValueError(f"{var.name} holds {numpy_name(var.dtype)}; data sets give float32 and int64")
        self.use_vars = list(var_list)

    def set_hdfs_config(self, fs_name: str, fs_ugi: str) -> None:
        """Makes Hadoop's client, as this user, read the files whose names begin with `afs:` or `hdfs:`."""
        self._hdfs = fs_name, fs_ugi
        home = os.environ.get("HADOOP_HOME")
        client = os.path.join(home, "bin", "hadoop") if home else "hadoop"
        self.hdfs_command = [client, "fs", f"-Dfs.default.name={fs_name}", f"-Dhadoop.job.ugi={fs_ugi}"]

    def get_hdfs_config(self) -> tuple[str, str]:
        """The name of the other file system and the user, empty if none were set."""
        return self._hdfs

    def set_download_cmd(self, download_cmd: str) -> None:
        """Sets the command that prints a file whose name begins with `afs:` or `hdfs:`."""
        self.download_cmd = download_cmd

    def get_download_cmd(self) -> str:
        """The command that prints files whose names begin with `afs:` or `hdfs:`."""
        return self.download_cmd

    def set_rank_offset(self, rank_offset: str) -> None:
        """Raises NotHere, because samples are not merged into page views."""
        raise unsupported_error("set_rank_offset", _ONE_BY_ONE)

    def set_pv_batch_size(self, pv_batch_size: int) -> None:
        """Raises NotHere, because samples are not merged into page views."""
        raise unsupported_error("set_pv_batch_size", _ONE_BY_ONE)

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Turns `slots_shuffle` on, by which a script measures how much a variable contributes."""
        self.fea_eval = fea_eval

    @property
    def proto_desc(self) -> Any:
        """The data set as Fluid's message `DataFeedDesc`."""
        from pstranspile.fluid.proto import DataFeedDesc

        desc = DataFeedDesc(name=self.feed_name, pipe_command=self.pipe_command)
        if self._has_size:
            desc.batch_size = self.batch_size
        for var in self.use_vars:
            slot = desc.multi_slot_desc.slots.add(name=var.name, is_used=True)
            slot.type = "float" if numpy_name(var.dtype) == "float32" else "uint64"
            if not var.lod_level:
                slot.is_dense = True
                slot.shape.extend(var.shape)
        return desc

    def desc(self) -> str:
        """The data set as Fluid's message `DataFeedDesc`, in text form."""
        from google.protobuf import text_format

        return text_format.MessageToString(self.proto_desc)

    def lines(self, files: Iterable[str] | None = None) -> Iterator[Sample]:
        """The samples of files (default: all). Raises RuntimeError if a command fails, ValueError for a line that is
        not a sample.

        Words after the last variable are skipped, with a warning.
        """
        for file in self.filelist if files is None else files:
            with self._open_file(file) as source:
                command = subprocess.Popen(self.pipe_command, shell=True, stdin=source, stdout=subprocess.PIPE)
                assert command.stdout is not None
                more = False
                for number, line in enumerate(iter(partial(command.stdout.readline, LONGEST + 1), b""), start=1):
                    if len(line) > LONGEST:
                        raise ValueError(f"{file}:{number}: a line of more than {LONGEST >> 20} MiB is no sample")
                    sample, left = self._sample(line, f"{file}:{number}")
                    if left and not more:
                        more = True
                        warn(
                            f"{file}:{number}: words are left after the last variable; they are skipped in this file, "
                            "as in Fluid",
                        )
                    yield sample
                if command.wait():
                    raise RuntimeError(f"{self.pipe_command!r} has ended with status {command.returncode} for {file}")

    @contextmanager
    def _open_file(self, file: str) -> Generator[Any]:
        """A file as a stream; for a compressed or remote file, the output of the command that prints it. Raises
        RuntimeError if the command fails.
        """
        printing = self._printing(file)
        if not printing:
            with open(file, "rb") as source:
                yield source
            return
        with subprocess.Popen([*printing, file], stdout=subprocess.PIPE) as command:
            yield command.stdout
        if command.returncode:
            raise RuntimeError(f"{shlex.join(printing)!r} has ended with status {command.returncode} for {file}")

    def _printing(self, file: str) -> list[str]:
        """The command that prints a file, without the file's name; empty for a plain local file."""
        if not file.startswith(("afs:", "hdfs:")):
            return ["gzip", "-dc", "--"] if file.endswith(".gz") else []
        if self.download_cmd:
            return shlex.split(self.download_cmd)
        return [*self.hdfs_command, "-text" if file.endswith(".gz") else "-cat"]

    def _sample(self, line: bytes, place: str) -> tuple[Sample, bool]:
        """The sample in a line, and whether words follow it. Raises ValueError if the line is not a sample."""
        words, at, sample = line.split(), 2 * (self.parse_ins_id + self.parse_content), Sample()
        for var in self.use_vars:
            count = _count(words[at]) if at < len(words) else 0
            values = words[at + 1 : at + 1 + count]
            if not count or len(values) < count:
                raise ValueError(f"{place}: {var.name} needs a number of values, at least 1, and as many values")
            sample.append(_values(var, values, place))
            at += 1 + count
        if self.parse_ins_id:
            sample.append([words[1].decode("utf-8", "backslashreplace")])
        return sample, at < len(words)

    def samples(self) -> Iterable[Sample]:
        """The samples of an epoch."""
        return self.lines()

    def dealt(self, parts: int) -> list[Iterable[Sample]]:
        """The samples of an epoch, with the files divided among several devices. Raises AssertionError for fewer files
        than devices.
        """
        if len(self.filelist) < parts:
            raise AssertionError(f"{len(self.filelist)} files can't be dealt to {parts} devices")
        return [self.lines(self.filelist[part::parts]) for part in range(parts)]

    def feed_dicts(self, drop_last: bool = False) -> Iterator[dict[str, LoDTensor]]:
        """The batches of an epoch, as feeds."""
        return self.batches(self.samples(), drop_last)

    def batches(self, samples: Iterable[Sample], drop_last: bool) -> Iterator[dict[str, LoDTensor]]:
        """The batches of some samples, as feeds."""
        held: list[Sample] = []
        for sample in samples:
            held.append(sample)
            if len(held) == self.batch_size:
                yield self._batch(held)
                held = []
        if held and not drop_last:
            yield self._batch(held)

    def _batch(self, samples: list[Sample]) -> dict[str, LoDTensor]:
        return {var.name: _column(var, [sample[at] for sample in samples]) for at, var in enumerate(self.use_vars)}


def _count(word: bytes) -> int:
    """The number of values of a slot; 0 for a word that is not a number, or greater than a line can have."""
    digits = word.removeprefix(b"+").lstrip(b"0")
    return int(digits) if digits.isdigit() and len(digits) < 19 else 0


def _values(var: Variable, words: list[bytes], place: str) -> list[Any]:
    """The values of a variable. Raises ValueError for words that are not values, and for values that don't fill whole
    rows.
    """
    ids = numpy_name(var.dtype) == "int64"
    try:
        values: list[Any] = [*map(int if ids else float, words)]
        fine = b"_" not in b"".join(words)
    except ValueError:
        values, fine = [], False
    if ids and fine and (min(values) < _LOWEST or max(values) > ~_LOWEST):
        fine = min(values) >= _LOWEST and max(values) < _BEYOND
        values = [value - _BEYOND if value > ~_LOWEST else value for value in values]
    if not fine:
        wrong = next((word for word in words if not _is_value(word, ids)), b"").decode("ascii", "backslashreplace")
        shown = wrong if len(wrong) <= 40 else f"{wrong[:40]}..."
        raise ValueError(f"{place}: {var.name} holds {shown!r}, which is no {'id of 64 bits' if ids else 'number'}")
    size = 1 if var.lod_level else prod(var.shape[1:])
    if size <= 0 or len(values) % size:
        raise ValueError(
            f"{place}: {var.name}: a sample has {len(values)} values, and a row of {list(var.shape)} has {abs(size)}"
        )
    return values


def _is_value(word: bytes, ids: bool) -> bool:
    """Whether a word is an id of 64 bits, or a float."""
    try:
        number = int(word) if ids else float(word)
    except ValueError:
        return False
    return b"_" not in word and (not ids or _LOWEST <= number < _BEYOND)


def _column(var: Variable, rows: list[list[Any]]) -> LoDTensor:
    """The values of a variable in a batch as one tensor. As in Fluid, a sample has as many rows as its values fill, one
    0 if it has none.
    """
    rows = [row or [0] for row in rows]
    flat = np.array([value for row in rows for value in row], numpy_name(var.dtype))
    if var.lod_level:
        result = LoDTensor(flat.reshape(-1, *[1] * (len(var.shape) - 1)))
        result.set_recursive_sequence_lengths([[len(row) for row in rows]])
        return result
    return LoDTensor(flat.reshape(-1, *var.shape[1:]))


class QueueDataset(DatasetBase):
    """Reads samples in the order of the files, without keeping them."""

    def local_shuffle(self) -> None:
        """Raises NotImplementedError, because samples are not kept."""
        raise NotImplementedError("a QueueDataset keeps no samples; take an InMemoryDataset to shuffle them")

    def global_shuffle(self, fleet: Any = None) -> None:
        """Raises NotImplementedError, because samples are not kept."""
        self.local_shuffle()


class FileInstantDataset(QueueDataset):
    """Reads samples in the order of the files, when they are needed."""

    feed_name = "MultiSlotFileInstantDataFeed"


class InMemoryDataset(DatasetBase):
    """Samples that are kept in memory, and may be shuffled.

    As in Fluid, variables with LoD lose their zeros when the files are read: the id 0, and floats below 1e-6. A sample
    that has no values left gets one 0. A `QueueDataset` keeps zeros.
    """

    feed_name = "MultiSlotInMemoryDataFeed"

    def __init__(self) -> None:
        super().__init__()
        self._samples: list[Sample] = []
        self._merge_size: int | None = None

    def load_into_memory(self) -> None:
        """Reads all files, and drops zeros from variables with LoD."""
        ragged = [at for at, var in enumerate(self.use_vars) if var.lod_level]
        floats = {at for at in ragged if numpy_name(self.use_vars[at].dtype) == "float32"}
        self._samples = list(self.lines())
        for sample in self._samples:
            for at in ragged:
                if at in floats:
                    sample[at] = [value for value in sample[at] if not abs(float(np.float32(value))) < _NOTHING]
                elif 0 in sample[at]:
                    sample[at] = [value for value in sample[at] if value]

    def preload_into_memory(self, thread_num: int | None = None) -> None:
        """Reads all files before it returns, like `load_into_memory`."""
        self.load_into_memory()

    def wait_preload_done(self) -> None:
        """Does nothing, because `preload_into_memory` reads all files before it returns."""

    def set_parse_ins_id(self, parse_ins_id: bool) -> None:
        """Sets whether a line begins with the id of the sample, as one value, by which lines can be merged."""
        self.parse_ins_id = parse_ins_id

    def set_parse_content(self, parse_content: bool) -> None:
        """Sets whether the id is followed by the source of the sample, as one value, which is skipped."""
        self.parse_content = parse_content

    def set_parse_logkey(self, parse_logkey: bool) -> None:
        """Sets whether lines begin with the key of a page view. Raises NotHere for True."""
        if parse_logkey:
            raise unsupported_error("set_parse_logkey(True)", _ONE_BY_ONE)

    def set_enable_pv_merge(self, enable_pv_merge: bool) -> None:
        """Sets whether samples are merged into page views. Raises NotHere for True."""
        if enable_pv_merge:
            raise unsupported_error("set_enable_pv_merge(True)", _ONE_BY_ONE)

    def set_merge_by_sid(self, merge_by_sid: bool) -> None:
        """Does nothing, because samples are not merged into page views."""

    def set_queue_num(self, queue_num: int) -> None:
        """Does nothing, because files are read one after the other, without queues."""

    def set_fleet_send_batch_size(self, fleet_send_batch_size: int = 1024) -> None:
        """Does nothing, because trainers do not send samples to each other."""

    def set_fleet_send_sleep_seconds(self, fleet_send_sleep_seconds: int = 0) -> None:
        """Does nothing, because trainers do not send samples to each other."""

    def set_generate_unique_feasigns(self, generate_uni_feasigns: bool, shard_num: int) -> None:
        """Does nothing, because there are no tables of pslib, for which Fluid lists the ids in the data."""

    def generate_local_tables_unlock(
        self, table_id: int, fea_dim: int, read_thread_num: int, consume_thread_num: int, shard_num: int
    ) -> None:
        """Does nothing, because there are no tables of pslib, which Fluid fills."""

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """Makes `global_shuffle` merge lines of the same id: exactly `merge_size` of them, or any number for 0."""
        self._merge_size, self.parse_ins_id = merge_size, True

    def merge_by_lineid(self) -> None:
        """Merges the lines of each id into one sample, in the order of the ids, with their values one after the other.

        An id is dropped if it does not have the set number of lines, or if two of its lines have a value for a variable
        without LoD. Lines that were read without ids stay unchanged.
        """
        if self._merge_size is None:
            return
        ragged = [bool(var.lod_level) for var in self.use_vars]
        groups: dict[str, list[Sample]] = {}
        for sample in self._samples:
            if len(sample) > len(ragged):
                groups.setdefault(sample[-1][0], []).append(sample)
        self._samples = [sample for sample in self._samples if len(sample) == len(ragged)] + [
            [[word for sample in group for word in sample[at]] for at in range(len(ragged))] + [[name]]
            for name, group in sorted(groups.items())
            if self._merge_size in (0, len(group)) and (len(group) == 1 or all(ragged))
        ]

    def slots_shuffle(self, slots: Sequence[str]) -> None:
        """After `set_fea_eval`, distributes the values of these variables over the samples at random."""
        for at in [at for at, var in enumerate(self.use_vars) if self.fea_eval and var.name in slots]:
            values = [sample[at] for sample in self._samples]
            random.shuffle(values)
            for sample, value in zip(self._samples, values, strict=True):
                sample[at] = value

    def local_shuffle(self) -> None:
        """Puts the samples in random order."""
        random.shuffle(self._samples)

    def global_shuffle(self, fleet: Any = None, thread_num: int = 12) -> None:
        """Shuffles the samples of a single trainer, and merges lines; raises NotHere for several trainers."""
        if fleet is not None and fleet.worker_num() > 1:
            raise unsupported_error("global_shuffle", "deal the files to the trainers anew, and call local_shuffle")
        self.local_shuffle()
        self.merge_by_lineid()

    def release_memory(self) -> None:
        """Drops the samples."""
        self._samples = []

    def get_memory_data_size(self, fleet: Any = None) -> int:
        """The number of samples that this trainer keeps."""
        return len(self._samples)

    get_shuffle_data_size = get_memory_data_size

    def samples(self) -> Iterable[Sample]:
        """The samples in memory."""
        return self._samples

    def dealt(self, parts: int) -> list[Iterable[Sample]]:
        """The samples in memory, divided among several devices."""
        return [self._samples[part::parts] for part in range(parts)]


__getattr__ = names_of_fluid(__name__, globals())
