"""Keyword-only parameters of kernels: attributes, wanted outputs and values computed once per op."""

from __future__ import annotations

from typing import Any

import pytest

from pstranspile.ir.model import Op
from pstranspile.ops.build import make_op
from pstranspile.ops.shapes import Dims
from pstranspile.runtime.kernels import kernel as module
from pstranspile.runtime.kernels.kernel import kernel_of, per_op, plain_kernel


@pytest.fixture(autouse=True)
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KERNELS", {})


def bound(op_type: str, op: Op) -> Any:
    kernel = kernel_of(op_type)
    assert kernel is not None
    return kernel.make(op)


def test_attributes_are_bound_by_their_annotation():
    @plain_kernel("bound_attributes")
    def _(X: int, *, axis: int = -1, alpha: float, flag: bool, mode: str, dims: Dims) -> Any:
        return X, axis, alpha, flag, mode, dims

    op = make_op("bound_attributes", {}, {}, {"alpha": 0.5, "flag": True, "mode": "sum"})
    assert bound("bound_attributes", op)(7) == (7, -1, 0.5, True, "sum", ())


def test_every_op_has_its_own_values():
    calls: list[str] = []

    def size(op: Op) -> int:
        calls.append(op.type)
        return len(op.inputs["X"])

    @plain_kernel("own_values", "X@GRAD")
    def _(*, op: Op, wants_X_GRAD: bool, size: int = per_op(size)) -> Any:
        return op.inputs["X"], wants_X_GRAD, size

    one = bound("own_values", make_op("own_values", {"X": ["a"]}, {"X@GRAD": ["a@GRAD"]}))
    two = bound("own_values", make_op("own_values", {"X": ["a", "b"]}, {}))
    assert [one(), two(), one()] == [(("a",), True, 1), (("a", "b"), False, 2), (("a",), True, 1)]
    assert calls == ["own_values"] * 2


def test_annotations_need_not_be_text():
    def run(X: Any, *, beta: Any) -> Any:
        return X * beta

    run.__annotations__["beta"] = float
    plain_kernel("typed")(run)
    assert bound("typed", make_op("typed", {}, {}, {"beta": 2.0}))(3) == 6


def test_other_annotations_are_refused():
    with pytest.raises(
        TypeError, match="parameter beta of a kernel is complex, it must be int, float, bool, str, Dims"
    ):

        @plain_kernel("untyped")
        def _(X: Any, *, beta: complex) -> Any:
            return X * beta
