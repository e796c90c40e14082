"""What a check does where inputs or counters are not given: it makes what fits, and says what it could not."""

from __future__ import annotations

import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.attributes import Longs
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import FrozenMap, Module, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.proof import check
from pstranspile.proof.report import ADDS_UP, report_text

JOB = ps.Job(pservers="a:6174,b:6174", trainers=2)


def regression(rows: int) -> Module:
    """A line that is fitted, and a sum of what was seen, which no start-up program starts."""
    draft = L.Draft(seed=1)
    x, y = L.data(draft, "x", (rows, 3)), L.data(draft, "y", (rows, 1))
    minimize(L.mean(L.square(L.fc(x, 1) - y)), SGD(0.1))
    seen = draft.declare(Var("seen", tensor=TensorType(DType.FP32, (1,)), persistable=True))
    draft.op("sum", {"X": [seen, L.reduce_sum(x)]}, {"Out": seen.name}, {})
    return draft.module()


def test_inputs_that_declare_their_batch_size_are_told():
    report = check(regression(4), JOB, steps=2)
    assert report.holds
    assert report.whole == ("x", "y")
    assert "every trainer was given the same data: %x, %y declare the batch size" in report_text(report)
    assert "trains as the single machine does" not in report_text(report)


def test_counters_that_nothing_starts_begin_with_0():
    report = check(regression(-1), JOB, steps=2)
    assert report.holds
    assert report.whole == ()
    assert {v.name: v.equality for v in report.verdicts}["seen"] == ADDS_UP


def test_counters_may_have_other_dims_in_the_startup_program():
    draft = L.Draft(seed=1)
    scores = L.fc(L.data(draft, "x", (-1, 3)), 2, act="softmax")
    label = L.data(draft, "label", (-1, 1), "i64")
    L.auc(scores, label, num_thresholds=15)
    minimize(L.mean(L.cross_entropy(scores, label)), SGD(0.1))
    module = draft.module()
    block = module["startup"].main_block
    name = next(name for name, var in block.vars.items() if var.shape == (1, 16))
    made = {name: block.vars[name]._replace(tensor=TensorType(DType.INT64, (17,)))}
    ops = tuple(
        op._replace(attrs=FrozenMap({**op.attrs, "shape": Longs((17,))})) if name in op.output_names else op
        for op in block.ops
    )
    startup = module["startup"]._replace(blocks=(block._replace(ops=ops, vars=FrozenMap({**block.vars, **made})),))
    module = Module(FrozenMap({**module.programs, "startup": startup}))
    report = check(module, JOB, steps=2)
    assert report.holds
    assert {v.name: v.equality for v in report.verdicts}[name] == ADDS_UP


def test_an_op_that_the_data_do_not_suit_names_its_inputs():
    """No batch of so many rows can be cut into 7 parts."""
    draft = L.Draft(seed=1)
    x, y = L.data(draft, "x", (-1, -1)), L.data(draft, "y", (-1, -1))
    low = L.reduce_sum(x, dim=[1], keep_dim=True)
    out = draft.fresh("out", DType.FP32)
    draft.op("reshape2", {"X": y}, {"Out": out, "XShape": draft.fresh("dims", DType.FP32)}, {"shape": (7, -1)})
    loss = L.mean(L.fc(low, 1)) + L.mean(out)
    minimize(loss, SGD(0.1))
    with pytest.raises(DiagnosticError, match=r"(?s)reshape2.*with --feed: %y") as caught:
        check(draft.module(), JOB, steps=1)
    assert "%x" not in str(caught.value)
