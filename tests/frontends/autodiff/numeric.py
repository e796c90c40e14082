"""Gradients against central differences: the harness. `cases.py` says what to draw for each op type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import append_backward
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import DTYPES

STEP = 1e-6
NAMES = {"float64": "f64", "float32": "f32", "int64": "i64", "int32": "i32", "bool": "bool"}


class Case(NamedTuple):
    """One op with values: `inputs` slot -> array, LoDTensor or list of arrays.

    `wrt` are the input slots whose gradients are checked, `outputs` the output slots that the loss is made of (slot
    -> how many variables), `others` output slots that only have to be there. `same` puts the variable of an input
    slot into an output slot.
    """

    op_type: str
    inputs: Mapping[str, Any]
    attrs: Mapping[str, object] = {}
    wrt: tuple[str, ...] = ("X",)
    outputs: Mapping[str, int] = {"Out": 1}
    others: tuple[str, ...] = ()
    same: Mapping[str, str] = {}


class Built(NamedTuple):
    """The case as a program: what to feed, the loss, the names whose gradients are checked, and the program."""

    main: ps.Program
    forward: ps.Program
    feed: dict[str, Any]
    loss: str
    wrt: tuple[str, ...]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def data_of(value: Any) -> np.ndarray:
    return value.data if isinstance(value, ps.LoDTensor) else value


def build(case: Case, random: np.random.Generator) -> Built:
    """The program of a case: loss = the sum over the outputs of reduce_sum(output * weight)."""
    draft = L.Draft(seed=1)
    feed: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    for slot, value in case.inputs.items():
        for at, item in enumerate(listed(value)):
            name = f"in_{slot.replace('@', '_')}_{at}"
            held = data_of(item)
            level = len(item.lod) if isinstance(item, ps.LoDTensor) else 0
            tensor = TensorType(DTYPES[NAMES[held.dtype.name]], held.shape, level)
            draft.declare(Var(name, tensor=tensor))
            if slot not in case.wrt:
                draft.stop_gradient.add(name)
            feed[name] = item
            names.setdefault(slot, []).append(name)
    outputs: dict[str, list[str]] = {
        slot: [draft.fresh("out").name for _ in range(n)] for slot, n in case.outputs.items()
    }
    outputs |= {slot: [draft.fresh("other", stop_gradient=True).name] for slot in case.others}
    outputs |= {slot: names[source] for slot, source in case.same.items()}
    draft.op(case.op_type, names, outputs, dict(case.attrs))
    checked = [name for slot in case.outputs for name in outputs[slot]]
    values = ps.run(draft.main(), feed=feed, fetch=checked)
    parts: list[L.Value] = []
    for name in checked:
        value = values[name]
        weight = random.uniform(0.5, 1.5, size=data_of(value).shape)
        level = len(value.lod) if isinstance(value, ps.LoDTensor) else 0
        var = draft.blocks[0].vars[name]
        draft.declare(var._replace(tensor=TensorType(DTYPES["f64"], data_of(value).shape, level)))
        feed[f"weight_{name}"] = weight
        weighted = L.data(draft, f"weight_{name}", weight.shape, "f64")
        parts.append(L.reduce_sum(L.elementwise_mul(L.Value(draft, name), weighted)))
    loss = L.sums(parts) if len(parts) > 1 else parts[0]
    forward = draft.main()
    wrt = tuple(name for slot in case.wrt for name in names[slot])
    append_backward(draft, loss.name, wrt)
    return Built(draft.main(), forward, feed, loss.name, wrt)


def moved(value: Any, by: np.ndarray) -> Any:
    return value._replace(data=value.data + by) if isinstance(value, ps.LoDTensor) else value + by


def check(case: Case, random: np.random.Generator) -> None:
    """Compares the gradient along a random direction with the central difference of the loss."""
    built = build(case, random)
    gradients = [f"{name}@GRAD" for name in built.wrt]
    found = ps.run(built.main, feed=built.feed, fetch=gradients)
    for name, gradient in zip(built.wrt, gradients, strict=True):
        value = built.feed[name]
        direction = random.normal(size=data_of(value).shape)
        around: list[float] = []
        for sign in (1, -1):
            feed = {**built.feed, name: moved(value, sign * STEP * direction)}
            around.append(
                float(data_of(ps.run(built.forward, feed=feed, fetch=[built.loss])[built.loss]).reshape(-1)[0])
            )
        slope = (around[0] - around[1]) / (2 * STEP)
        dense = dense_of(found[gradient], data_of(value).shape)
        along = float((dense * direction).sum())
        scale = max(1.0, abs(slope), float(np.abs(dense * direction).sum()))
        assert abs(along - slope) <= 1e-6 * scale, f"{case.op_type} {name}: {along} and {slope} by differences"
        assert dense.dtype == np.float64


def dense_of(gradient: Any, shape: tuple[int, ...]) -> np.ndarray:
    if isinstance(gradient, ps.SelectedRows):
        whole = np.zeros(shape)
        np.add.at(whole, gradient.rows, gradient.value)
        return whole
    return data_of(gradient)
