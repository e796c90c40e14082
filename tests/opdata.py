"""Recordings of single ops and small programs of the real Fluid, and what it means to reproduce them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.ops import with_defaults
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows
from tests.ops.typed import check_types

FOLDER = Path(__file__).parent / "data" / "fluid"
ARCHIVES = {
    "ops": 898,
    "more_ops": 677,
    "loss_ops": 536,
    "recurrent_ops": 191,
    "index_ops": 520,
    "image_ops": 339,
    "detection_ops": 114,
    "contributed_ops": 75,
}
"""The archives, and how many recordings each holds."""
DTYPES = {name: dtype for dtype, name in NUMPY_TYPES.items()}
EXACT = {"rtol": 0.0, "atol": 0.0}


@cache
def files() -> dict[str, bytes]:
    held: dict[str, bytes] = {}
    for name in ARCHIVES:
        with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
            members = ((member.name, archive.extractfile(member)) for member in archive.getmembers())
            held.update((path.removesuffix(".npz"), file.read()) for path, file in members if file is not None)
    return held


class Recording:
    """A recording: what was recorded, and the arrays, which are read when they are first asked for."""

    def __init__(self, name: str):
        self._read = np.load(io.BytesIO(files()[name]))
        self.meta: dict[str, Any] = json.loads(str(self._read["meta"]))

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return {key: value for key, value in self._read.items() if key != "meta"}

    def keys(self, prefix: str) -> list[str]:
        """Keys of values, those of sparse rows without their parts."""
        parts = {key: key.rpartition("/")[0] for key in self.arrays if key.startswith(prefix)}
        return list(dict.fromkeys(base if f"{base}/height" in self.arrays else key for key, base in parts.items()))

    def value(self, key: str) -> Any:
        if key not in self.arrays:
            rows, value, height = (self.arrays[f"{key}/{part}"] for part in ("rows", "value", "height"))
            return SelectedRows(rows, value, int(height))
        kind, _, rest = key.partition("/")
        lod = self.arrays.get(f"lod/{rest}" if kind in ("in", "out", "in_after") else f"lod/{key}")
        return self.arrays[key] if lod is None else LoDTensor(self.arrays[key], json.loads(str(lod)))

    def values(self, prefix: str) -> dict[str, Any]:
        return {key.removeprefix(prefix): self.value(key) for key in self.keys(prefix)}


def make_op(made: Mapping[str, Any]) -> Op:
    slots = (FrozenMap({k: tuple(v) for k, v in made[side].items()}) for side in ("inputs", "outputs"))
    attrs = {
        name: PYTHON_TYPES[AttrKind[made["attr_types"][name]]](value)
        for name, value in made["attrs"].items()
        if name not in ("op_role", "op_role_var")
    }
    return Op(made["type"], *slots, FrozenMap(attrs))


def make_program(blocks: list[dict[str, Any]]) -> Program:
    return Program(
        tuple(
            Block(
                FrozenMap({v["name"]: make_var(v) for v in block["vars"]}),
                tuple(map(make_op, block["ops"])),
                block["parent_idx"],
            )
            for block in blocks
        ),
        random_seed=1,
    )


def make_var(made: Mapping[str, Any]) -> Var:
    tensor = None
    if "dtype" in made:
        tensor = TensorType(DTYPES[made["dtype"]], tuple(made["shape"]), made.get("lod_level", 0))
    return Var(made["name"], VarKind[made["type"]], tensor, bool(made.get("persistable")))


def differences(got: Any, want: Any, tolerance: Mapping[str, float], what: str, lod: bool = True) -> Iterator[str]:
    if isinstance(want, SelectedRows):
        if not isinstance(got, SelectedRows) or got.height != want.height:
            yield f"{what}: {type(got).__name__}, want rows of {want.height}"
        else:
            yield from differences(np.asarray(got.rows), want.rows, EXACT, f"{what} rows")
            yield from differences(got.value, want.value, tolerance, f"{what} value")
        return
    got_lod, want_lod = (value.lod if isinstance(value, LoDTensor) else [] for value in (got, want))
    if lod and got_lod != want_lod:
        yield f"{what}: LoD {got_lod}, want {want_lod}"
    got, want = (value.data if isinstance(value, LoDTensor) else value for value in (got, want))
    if not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype != want.dtype:
        told = f"{got.dtype} {got.shape}" if isinstance(got, np.ndarray) else type(got).__name__
        yield f"{what}: {told}, want {want.dtype} {want.shape}"
    elif want.dtype.kind == "f":
        if not np.allclose(got.astype("float64"), want.astype("float64"), **tolerance, equal_nan=True):
            yield f"{what}: {got.ravel()[:8]}, want {want.ravel()[:8]}"
    elif not (got == want).all():
        yield f"{what}: {got.ravel()[:8]}, want {want.ravel()[:8]}"


def faults(name: str, folder: Path) -> list[str]:
    """What our run of a recording gives otherwise."""
    recording = Recording(name)
    program = recording.meta["kind"] == "program"
    return list(program_faults(recording) if program else op_faults(recording, folder))


def type_faults(recording: Recording) -> list[str]:
    """Where the shape rule of a recorded op refuses the dims and element types of its recorded values."""
    meta = recording.meta
    types: dict[str, TensorType] = {}
    for side, slots in (("in", meta["inputs"]), ("out", meta["outputs"])):
        for slot, names in slots.items():
            for number, name in enumerate(names):
                key = f"{side}/{slot}/{number}"
                if key in recording.arrays and recording.arrays[key].size:  # sparse rows are declared otherwise
                    value = recording.value(key)
                    ragged = isinstance(value, LoDTensor)
                    data = value.data if ragged else value
                    dims = (-1, *data.shape[1:]) if ragged else data.shape
                    types[name] = TensorType(DTYPES[data.dtype.name], dims, len(value.lod) if ragged else 0)
    return [problem.message for problem in check_types(with_defaults(make_op(meta)), types.get)]


def op_program(recording: Recording) -> tuple[Program, dict[str, str]]:
    """A program of the recorded op alone, and the variables' names by the keys of their values."""
    meta = recording.meta
    places = {
        f"{side}/{slot}/{number}": name
        for side, slots in (("in", meta["inputs"]), ("out", meta["outputs"]))
        for slot, names in slots.items()
        for number, name in enumerate(names)
    }
    sparse = {name for key, name in places.items() if f"{key}/height" in recording.arrays}
    kinds = {name: VarKind.SELECTED_ROWS if name in sparse else VarKind.LOD_TENSOR for name in places.values()}
    variables = {name: Var(name, kind, TensorType(DType.FP32, ())) for name, kind in kinds.items()}
    return Program((Block(FrozenMap(variables), (make_op(meta),)),), 7), places


def op_faults(recording: Recording, folder: Path) -> Iterator[str]:
    meta = recording.meta
    program, places = op_program(recording)
    (op,) = program.main_block.ops
    frame = Frame(Execution(program, Scope(), folder=folder))
    stored = {key[5:]: recording.arrays[key].tobytes() for key in recording.arrays if key.startswith("file/")}
    writes = op.type.startswith("save")
    for path, content in {} if writes else stored.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    given = {places[key]: own_copy(recording.value(key)) for key in recording.keys("in/")}
    frame.local.update(given)
    before = {name: own_copy(value) for name, value in given.items()}
    with np.errstate(all="ignore"):
        frame.execute()
    for path, content in stored.items() if writes else ():
        if (folder / path).read_bytes() != content:
            yield f"file {path}"
    changed = {places[f"in/{key[9:]}"]: key for key in recording.keys("in_after/")}
    for name, value in before.items():
        if name in changed:
            yield from differences(frame.find(name), recording.value(changed[name]), meta["tolerance"], changed[name])
        elif name not in op.output_names:
            yield from differences(given[name], value, EXACT, f"the input {name}")
    yield from output_faults(recording, frame, places)


def output_faults(recording: Recording, frame: Frame, places: Mapping[str, str]) -> Iterator[str]:
    meta = recording.meta
    skipped = {*(meta.get("skip") or ()), *(meta.get("uninitialized") or ())}
    for key, name in places.items():
        got = frame.find(name)
        if key in (meta.get("statistics") or {}):
            yield from statistic_faults(got, meta["statistics"][key], key)
            continue
        recorded = key in recording.arrays or f"{key}/height" in recording.arrays
        unordered = meta["type"] == "top_k" and key.startswith("out/Indices")  # among equal values
        if not key.startswith("out/") or key in skipped or name == "@EMPTY@" or not recorded or unordered:
            continue
        want = recording.value(key)
        if meta["type"] == "nce_grad" and isinstance(want, SelectedRows):  # a set of rows, in no order
            got, want = in_order(got), in_order(want)
        yield from differences(got, want, meta["tolerance"], key)


def in_order(value: SelectedRows) -> SelectedRows:
    order = np.argsort(value.rows, kind="stable")
    return SelectedRows(np.asarray(value.rows)[order], value.value[order], value.height)


def statistic_faults(got: Any, want: Mapping[str, Any], what: str) -> Iterator[str]:
    if list(got.shape) != want["shape"] or str(got.dtype) != want["dtype"]:
        yield f"{what}: {got.dtype} {got.shape}, want {want['dtype']} {want['shape']}"
    values = got.astype("float64")
    spread = 8 * max(want["std"], 1e-9) / want["count"] ** 0.5
    if abs(values.mean() - want["mean"]) > spread:
        yield f"{what}: mean {values.mean()}, want {want['mean']}"
    if abs(values.std() - want["std"]) > spread + 0.02 * want["std"]:
        yield f"{what}: standard deviation {values.std()}, want {want['std']}"


def program_faults(recording: Recording) -> Iterator[str]:
    meta = recording.meta
    tolerance, scope = meta["tolerance"], Scope()
    skipped = {*(meta.get("uninitialized_vars") or ()), *(meta.get("skip") or ())}
    Frame(Execution(make_program(meta["startup"]), scope)).execute()
    for name, want in recording.values("init/").items():
        if name not in skipped:
            yield from differences(scope.get(name), want, tolerance, f"init {name}")
    main = make_program(meta["main"])
    for step in range(meta["steps"]):
        frame = Frame(Execution(main, scope))
        frame.local.update(recording.values(f"feed{step}/"))
        with np.errstate(all="ignore"):
            frame.execute()
        for name, want in recording.values(f"step{step}/").items():
            if name not in skipped:
                yield from differences(frame.find(name), want, tolerance, f"step {step} {name}", lod=False)
        if "lr" in recording.arrays:
            rate = np.ravel(frame.find(meta["labels"]["lr"]))[:1].astype("float64")
            want = np.ravel(recording.arrays["lr"])[step : step + 1].astype("float64")
            yield from differences(rate, want, tolerance, f"step {step} learning rate")


def names() -> list[str]:
    return sorted(files())


__all__ = ["Recording", "differences", "faults", "make_op", "make_program", "names"]
