"""Saving and loading the persistable variables of a program."""

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Block, FrozenMap, Program, TensorType, Var
from pstranspile.ir.types import DType, VarKind
from pstranspile.runtime.files.variables import load_variables, persistable_names, read_safetensors, save_variables
from pstranspile.runtime.values import LoDTensor, SelectedRows
from pstranspile.runtime.values.encoding import read_combined, read_tensor

LAYOUTS = pytest.mark.parametrize("layout", ["files", "combined", "safetensors"])


def program(**variables: Var) -> Program:
    return Program((Block(FrozenMap({name: var._replace(name=name) for name, var in variables.items()})),))


def kept(dtype=DType.FP32, shape=(2, 3), kind=VarKind.LOD_TENSOR) -> Var:
    return Var("", kind, TensorType(dtype, shape), persistable=True)


DENSE = program(
    w=kept(),
    b=kept(DType.FP64, (3,)),
    step=kept(DType.INT64, (1,)),
    ragged=kept(DType.FP32, (-1, 1)),
    x=kept()._replace(persistable=False),
    feed=Var("", VarKind.FEED_MINIBATCH, persistable=True),
    reader=Var("", VarKind.READER, persistable=True),
)
VALUES = {
    "w": np.arange(6, dtype="float32").reshape(2, 3),
    "b": np.array([1.5, -2.0, 1e300]),
    "step": np.array([2**40]),
    "ragged": LoDTensor(np.ones((3, 1), "float32"), [[0, 1, 3]]),
    "x": np.zeros(1),
}
SPARSE = program(table=kept(DType.FP32, (9, 2), VarKind.SELECTED_ROWS), w=kept())
TABLE = SelectedRows(np.array([5, 2]), np.array([[1, 2], [3, 4], [0, 0]], "float32"), 100)


def equal(a, b) -> bool:
    if isinstance(a, tuple):
        return type(a) is type(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return np.array_equal(a, b) and getattr(a, "dtype", None) == getattr(b, "dtype", None)


def target(folder: Path, layout: str) -> Path:
    return folder / ("kept" if layout == "files" else f"kept.{layout}")


def codes_of(problem: pytest.ExceptionInfo[DiagnosticError]) -> list[str]:
    return [finding.code for finding in problem.value.diagnostics]


def test_what_is_kept():
    assert persistable_names(DENSE) == ("b", "ragged", "step", "w")


@LAYOUTS
def test_variables_come_back_bit_for_bit(tmp_path, layout):
    place = target(tmp_path, layout)
    save_variables(DENSE, VALUES, place, layout=layout)
    scope = {"w": np.zeros((2, 3), "float32"), "other": 1}
    load_variables(DENSE, scope, place, layout=layout)
    assert sorted(scope) == ["b", "other", "ragged", "step", "w"]
    assert all(equal(scope[name], VALUES[name]) for name in persistable_names(DENSE))
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


@pytest.mark.parametrize("layout", ["files", "safetensors"])
def test_sparse_rows_come_back(tmp_path, layout):
    place = target(tmp_path, layout)
    save_variables(SPARSE, VALUES | {"table": TABLE}, place, layout=layout)
    scope: dict[str, object] = {}
    load_variables(SPARSE, scope, place, layout=layout)
    assert equal(scope["table"], TABLE)


def test_combined_files_take_no_sparse_rows(tmp_path):
    with pytest.raises(DiagnosticError, match="table holds sparse rows"):
        save_variables(SPARSE, VALUES | {"table": TABLE}, tmp_path / "all", layout="combined")


def test_the_files_are_those_of_fluid(tmp_path):
    """A file named after each variable; combined in the order of the names."""
    save_variables(DENSE, VALUES, tmp_path / "folder")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == ["b", "ragged", "step", "w"]
    assert equal(read_tensor(tmp_path / "folder" / "w"), VALUES["w"])
    save_variables(DENSE, VALUES, tmp_path / "all", layout="combined")
    assert equal(read_combined(tmp_path / "all", ["b", "ragged", "step", "w"])["step"], VALUES["step"])
    save_variables(DENSE, VALUES, tmp_path / "st", layout="safetensors")
    assert sorted(read_safetensors(tmp_path / "st")) == ["b", "ragged", "ragged@LOD0", "step", "w"]


@LAYOUTS
def test_some_variables(tmp_path, layout):
    place = target(tmp_path, layout)
    save_variables(DENSE, VALUES, place, layout=layout, names=["w", "b"])
    scope: dict[str, object] = {}
    load_variables(DENSE, scope, place, layout=layout, names=["b", "w"])
    assert sorted(scope) == ["b", "w"]


def test_half_precision(tmp_path):
    save_variables(DENSE, VALUES, tmp_path / "half", names=["w"], as_fp16=True)
    assert read_tensor(tmp_path / "half" / "w").dtype == np.float16
    with pytest.raises(ValueError, match="safetensors stores elements as they are"):
        save_variables(DENSE, VALUES, tmp_path / "st", layout="safetensors", as_fp16=True)


@pytest.mark.parametrize("renamed", [0, 1, 2, 3])
def test_a_folder_holds_the_old_values_or_the_new_ones(tmp_path, monkeypatch, renamed):
    """Also when the process ends after so many files have got their names."""
    old = {name: np.zeros_like(value) for name, value in VALUES.items() if name != "ragged"}
    save_variables(DENSE, old, tmp_path / "kept", names=["w", "b", "step"])
    calls: list[object] = []

    def ending(rename):
        def stop(*paths):
            if len(calls) == renamed:
                raise SystemExit
            calls.append(paths)
            return rename(*paths)

        return stop

    monkeypatch.setattr(os, "replace", ending(os.replace))
    monkeypatch.setattr(os, "rename", ending(os.rename))
    with contextlib.suppress(SystemExit):
        save_variables(DENSE, VALUES, tmp_path / "kept", names=["w", "b", "step"])
    found = [read_tensor(tmp_path / "kept" / name).any() for name in ("w", "b", "step")]
    assert all(found) or not any(found)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["b", "step", "w"]


def test_names_with_slashes_make_folders_and_never_leave_them(tmp_path):
    nested = program(**{"a/w": kept()})
    save_variables(nested, {"a/w": VALUES["w"]}, tmp_path / "folder")
    assert (tmp_path / "folder" / "a" / "w").is_file()
    for name in ("../w", "/w", "a/../../w", ""):
        with pytest.raises(DiagnosticError, match="can't be the name of a file"):
            save_variables(program(**{name: kept()}), {name: VALUES["w"]}, tmp_path / "folder")


@LAYOUTS
def test_variables_without_value_are_all_named(tmp_path, layout):
    with pytest.raises(DiagnosticError) as problem:
        save_variables(DENSE, {"w": VALUES["w"]}, target(tmp_path, layout), layout=layout)
    assert codes_of(problem) == ["values-none"] * 3
    assert list(tmp_path.iterdir()) == []


def test_all_missing_files_are_named_and_nothing_is_set(tmp_path):
    save_variables(DENSE, VALUES, tmp_path, names=["w"])
    scope: dict[str, object] = {}
    with pytest.raises(DiagnosticError) as problem:
        load_variables(DENSE, scope, tmp_path)
    assert codes_of(problem) == ["values-unreadable"] * 3
    assert scope == {}
    save_variables(DENSE, VALUES, tmp_path / "st", names=["w"], layout="safetensors")
    with pytest.raises(DiagnosticError, match="the file has no tensor ragged") as problem:
        load_variables(DENSE, scope, tmp_path / "st", layout="safetensors")
    assert codes_of(problem) == ["values-missing"] * 3


@LAYOUTS
def test_values_that_are_not_as_declared_are_all_named(tmp_path, layout):
    place = target(tmp_path, layout)
    wrong = {"w": np.zeros((3, 2), "float32"), "b": np.zeros(3, "float32"), "step": VALUES["step"]}
    save_variables(DENSE, wrong, place, layout=layout, names=wrong)
    scope: dict[str, object] = {}
    with pytest.raises(DiagnosticError) as problem:
        load_variables(DENSE, scope, place, layout=layout, names=wrong)
    assert codes_of(problem) == ["values-shape", "values-shape"]
    assert "w is float32[3, 2] there, the program declares f32[2, 3]" in str(problem.value)
    assert scope == {}


def test_unknown_layouts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the layouts are"):
        save_variables(DENSE, VALUES, tmp_path, layout="pickle")
    with pytest.raises(ValueError, match="the layouts are"):
        load_variables(DENSE, {}, tmp_path, layout="pickle")


def test_names_that_meet_in_safetensors_are_refused(tmp_path):
    both = program(table=kept(DType.FP32, (9, 2), VarKind.SELECTED_ROWS), **{"table@ROWS": kept()})
    with pytest.raises(DiagnosticError, match="two variables need the name table@ROWS"):
        save_variables(both, {"table": TABLE, "table@ROWS": VALUES["w"]}, tmp_path / "st", layout="safetensors")
