"""Terms of gradients that no op makes are left out, as in Fluid."""

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import FrozenMap, Module
from pstranspile.proof import check
from pstranspile.runtime.run.seeds import TERM, without_unmade_terms


def net() -> Module:
    """A loss of which both inputs lead to the parameters; only one of them lets a gradient through."""
    draft = L.Draft(seed=1)
    hidden = L.fc(L.data(draft, "x", [-1, 4]), 3)
    minimize(L.mean(L.sigmoid_cross_entropy_with_logits(hidden, L.sigmoid(hidden))), SGD(0.5))
    return draft.module()


def test_the_gradient_is_what_the_other_terms_sum_to():
    module = net()
    (total,) = [op for op in module.main.main_block.ops if op.type == "sum"]
    assert len(total.inputs["X"]) == 2
    scope = ps.Scope()
    ps.run(module.startup, {}, [], scope)
    weight = next(p.name for p in module.main.parameters() if ".w_" in p.name)
    before = np.array(scope[weight])
    x = np.random.RandomState(0).rand(6, 4).astype("float32")
    gradient = next(iter(ps.run(module.main, {"x": x}, [weight + "@GRAD"], scope).values()))
    assert np.abs(gradient).max() < 1e-6  # the label is the sigmoid itself, so the loss is at its least
    np.testing.assert_allclose(scope[weight], before, atol=1e-6)


def test_a_cluster_leaves_them_out_too():
    report = check(net(), ps.Job(pservers=1, trainers=2))
    assert not report.different
    assert not report.wrong
    assert report.nothing_learnt


def test_a_sum_without_any_term_is_refused():
    module = net()
    block = module.main.main_block
    (total,) = [op for op in block.ops if op.type == "sum"]
    unmade = FrozenMap({"X": tuple(f"w{TERM}block0@{i}" for i in range(2))})
    ops = tuple(op._replace(inputs=unmade) if op is total else op for op in block.ops)
    main = module.main._replace(blocks=(block._replace(ops=ops),))
    assert without_unmade_terms(main) == main
    scope = ps.Scope()
    ps.run(module.startup, {}, [], scope)
    with pytest.raises(DiagnosticError):
        ps.run(main, {"x": np.ones((2, 4), "float32")}, [], scope)


def test_programs_without_such_sums_stay_what_they_are():
    module = net()
    without = without_unmade_terms(module.main)
    assert without_unmade_terms(without) is without
    assert without_unmade_terms(module.startup) is module.startup
