"""Updates of parameters against their formulas in float64, dense and sparse, in place and not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.ir.attributes import Long
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.kernels.training import optimizer
from pstranspile.runtime.values import SelectedRows
from tests.ops.computing import compute

RATE = 0.1

# op type -> slots kept beside Param (with their outputs), attributes, formula(p, g, *kept) -> new values
KEPT = {
    "sgd": (),
    "momentum": ("Velocity",),
    "lars_momentum": ("Velocity",),
    "adamax": ("Moment", "InfNorm"),
    "lamb": ("Moment1", "Moment2"),
    "adagrad": ("Moment",),
    "decayed_adagrad": ("Moment",),
    "adadelta": ("AvgSquaredGrad", "AvgSquaredUpdate"),
    "rmsprop": ("Moment", "MeanSquare", "MeanGrad"),
    "ftrl": ("SquaredAccumulator", "LinearAccumulator"),
    "proximal_gd": (),
    "proximal_adagrad": ("Moment",),
    "adam": ("Moment1", "Moment2"),
}
ATTRS = {
    "momentum": {"mu": 0.875, "use_nesterov": True},
    "lars_momentum": {"mu": 0.875},
    "lamb": {"weight_decay": 0.25, "beta1": 0.875, "beta2": 0.75},
    "adam": {"beta1": 0.875, "beta2": 0.75, "epsilon": 0.0078125},
    "adamax": {"beta1": 0.875, "beta2": 0.75, "epsilon": 0.0078125},
    "adagrad": {"epsilon": 0.0078125},
    "decayed_adagrad": {"epsilon": 0.0078125, "decay": 0.75},
    "adadelta": {"epsilon": 0.0078125, "rho": 0.75},
    "rmsprop": {"epsilon": 0.0078125, "decay": 0.75, "momentum": 0.5, "centered": True},
    "ftrl": {"l1": 0.125, "l2": 0.25, "lr_power": -0.5},
    "proximal_gd": {"l1": 0.125, "l2": 0.25},
    "proximal_adagrad": {"l1": 0.125, "l2": 0.25},
}
POWERS = {"adam": (0.875**3, 0.75**3), "lamb": (0.875**3, 0.75**3), "adamax": (0.875**3,)}
EPS = 0.0078125


def shrink(z, rate):
    return np.sign(z) * np.maximum(np.abs(z) - rate * 0.125, 0) / (1 + rate * 0.25)


def sgd(p, g):
    return (p - RATE * g,)


def momentum(p, g, v):
    v = 0.875 * v + g
    return p - RATE * (g + 0.875 * v), v


def lars_momentum(p, g, v):
    decay = float(np.float32(0.0005))
    norms = np.linalg.norm(p), np.linalg.norm(g)
    local = RATE
    if min(norms) > 0:
        local = RATE * float(np.float32(0.001)) * norms[0] / (norms[1] + decay * norms[0])
    v = 0.875 * v + local * (g + decay * p)
    return p - v, v


def adam(p, g, m, v):
    m, v = 0.875 * m + 0.125 * g, 0.75 * v + 0.25 * g * g
    power1, power2 = POWERS["adam"]
    return p - RATE * (1 - power2) ** 0.5 / (1 - power1) * m / (v**0.5 + EPS), m, v


def adamax(p, g, m, u):
    m, u = 0.875 * m + 0.125 * g, np.maximum(np.abs(g), 0.75 * u + EPS)
    return p - RATE / (1 - POWERS["adamax"][0]) * m / u, m, u


def lamb(p, g, m, v):
    m, v = 0.875 * m + 0.125 * g, 0.75 * v + 0.25 * g * g
    r = m / (v**0.5 + float(np.float32(1e-6))) + 0.25 * p
    norms = np.linalg.norm(p), np.linalg.norm(r)
    return p - RATE * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * r, m, v


def adagrad(p, g, m):
    m = m + g * g
    return p - RATE * g / (m**0.5 + EPS), m


def decayed_adagrad(p, g, m):
    m = 0.75 * m + 0.25 * g * g
    return p - RATE * g / (m**0.5 + EPS), m


def adadelta(p, g, a, b):
    a = 0.75 * a + 0.25 * g * g
    step = -(((b + EPS) / (a + EPS)) ** 0.5) * g
    b = 0.75 * b + 0.25 * step * step
    return p - ((b + EPS) / (a + EPS)) ** 0.5 * g, a, b


def rmsprop(p, g, mom, ms, mg):
    ms, mg = 0.75 * ms + 0.25 * g * g, 0.75 * mg + 0.25 * g
    mom = 0.5 * mom + RATE * g / (ms - mg * mg + EPS) ** 0.5
    return p - mom, mom, ms, mg


def ftrl(p, g, s, z):
    n = s + g * g
    z = z + g - (n**0.5 - s**0.5) / RATE * p
    return np.where(np.abs(z) > 0.125, (np.sign(z) * 0.125 - z) / (n**0.5 / RATE + 0.5), 0), n, z


def proximal_gd(p, g):
    return (shrink(p - RATE * g, RATE),)


def proximal_adagrad(p, g, m):
    m = m + g * g
    return shrink(p - RATE * g / m**0.5, RATE), m


FORMULAS = {name: globals()[name] for name in KEPT}
OUT = {"SquaredAccumulator": "SquaredAccumOut", "LinearAccumulator": "LinearAccumOut"}


def update(op_type, param, grad, kept, *, same=True, attrs=None):
    """The new values of Param and of what is kept, by kernel."""
    slots = ("Param", *KEPT[op_type])
    inputs = dict(zip(slots, (param, *kept), strict=True)) | {"Grad": grad}
    if op_type != "adadelta":
        inputs["LearningRate"] = np.array([RATE], param.dtype)
    outputs = {OUT.get(slot, f"{slot}Out"): slot if same else f"new_{slot}" for slot in slots}
    for number, power in enumerate(POWERS.get(op_type, ()), 1):
        inputs[f"Beta{number}Pow"] = np.array([power], param.dtype)
        if op_type == "adam":
            outputs[f"Beta{number}PowOut"] = f"Beta{number}Pow" if same else f"new_Beta{number}Pow"
    frame = compute(op_type, inputs, outputs, attrs or ATTRS.get(op_type))
    return [frame.find(slot if same else f"new_{slot}") for slot in slots]


def case(op_type, seed, shape, dtype="float64"):
    r = np.random.default_rng(seed)
    param, grad = r.standard_normal(shape).astype(dtype), r.standard_normal(shape).astype(dtype)
    kept = [r.uniform(0.5, 2.0, shape).astype(dtype) for _ in KEPT[op_type]]
    if op_type == "rmsprop":
        kept[2] *= 0.25  # a mean whose square is below the mean square
    return param, grad, kept


SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
OPTIMIZERS = pytest.mark.parametrize("op_type", KEPT)


@pytest.mark.parametrize(("same", "param"), [(False, 0.5900396), (True, 0.59167933)])
def test_adadelta_steps_by_the_average_that_stands_in_the_input(same: bool, param: float):
    """Fluid forms the step a second time for the parameter; in place, the new average is there by then."""
    held = [np.array([value], "float32") for value in (1.0, 0.5, 0.3, 0.2)]
    attrs = {"rho": 0.95, "epsilon": 1e-6}
    stepped, squares, updates = update("adadelta", held[0], held[1], held[2:], same=same, attrs=attrs)
    np.testing.assert_allclose([stepped, squares, updates], [[param], [0.2975], [0.19840337]], rtol=1e-6)


def test_sparse_adam_steps_by_the_powers_that_stand_in_the_input():
    """Fluid has advanced them by the time it steps, which the step sees where that is in place."""
    param, grad, kept = case("adam", 3, (2, 2))
    rows = SelectedRows(np.arange(2), grad, 2)
    apart = update("adam", param, rows, kept, same=False)[0]
    np.testing.assert_allclose(apart, update("adam", param, grad, kept)[0], rtol=1e-4)
    assert abs(update("adam", param, rows, kept)[0] - apart).min() > 0.01


@pytest.mark.parametrize("op_type", ["adam", "adamax"])
@pytest.mark.filterwarnings("ignore:divide by zero")  # runs of programs let it pass
def test_powers_of_one_give_infinities_as_in_fluid(op_type: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(POWERS, op_type, (1.0, 0.5)[: len(POWERS[op_type])])
    param, grad, kept = case(op_type, 3, (2, 2))
    assert np.isinf(update(op_type, param, grad, kept)[0]).all()


@OPTIMIZERS
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), shape=SHAPES)
def test_dense_update_is_its_formula(op_type, seed, shape):
    param, grad, kept = case(op_type, seed, shape)
    expected = FORMULAS[op_type](param, grad, *kept)
    for got, want in zip(update(op_type, param, grad, kept), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)  # RATE is a float32 in FLOAT attributes only


@pytest.mark.parametrize("op_type", [op_type for op_type in KEPT if op_type != "adadelta"])
@settings(max_examples=5)
@given(seed=st.integers(0, 1000), shape=SHAPES, sparse=st.booleans())
def test_in_place_or_not_gives_the_same_bits(op_type, seed, shape, sparse):
    param, grad, kept = case(op_type, seed, shape, "float32")
    if sparse and op_type != "adam":
        rows = np.random.default_rng(seed).integers(0, shape[0], shape[0])
        grad = SelectedRows(rows, grad, shape[0])
    for a, b in zip(update(op_type, param, grad, kept), update(op_type, param, grad, kept, same=False), strict=True):
        assert a.tobytes() == b.tobytes()
        assert a.dtype == np.float32


@OPTIMIZERS
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), height=st.integers(1, 8), count=st.integers(1, 12), width=st.integers(1, 4))
def test_sparse_gradient_is_the_dense_one_with_its_rows_added_up(op_type, seed, height, count, width):
    param, _, kept = case(op_type, seed, (height, width))
    r = np.random.default_rng(seed)
    rows, value = r.integers(0, height, count), r.standard_normal((count, width))
    dense = np.zeros((height, width))
    np.add.at(dense, rows, value)
    attrs = ATTRS.get(op_type)
    if op_type == "adam":  # with sparse rows the powers are advanced before they are used
        power1, power2 = (power * beta for power, beta in zip(POWERS["adam"], (0.875, 0.75), strict=True))
        m, v = 0.875 * kept[0] + 0.125 * dense, 0.75 * kept[1] + 0.25 * dense * dense
        expected = [param - RATE * (1 - power2) ** 0.5 / (1 - power1) * m / (v**0.5 + EPS), m, v]
    else:
        expected = update(op_type, param, dense, kept)
    got = update(op_type, param, SelectedRows(rows, value, height), kept, attrs=attrs)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@OPTIMIZERS
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(40, 3), (5, 31), (50,)])
@pytest.mark.parametrize("same", [True, False])
def test_a_large_update_in_pieces_gives_the_same_bits(op_type, sparse, shape, same, monkeypatch):
    param, grad, kept = case(op_type, 7, shape, "float32")
    if sparse:
        rows = np.array([1, shape[0] - 1, 1, 4])  # whole pieces are without a row
        grad = SelectedRows(rows, grad[: len(rows)], shape[0])
    want = update(op_type, param, grad, kept, same=same)
    monkeypatch.setattr(optimizer, "PIECE", 16)
    got = update(op_type, param, grad, kept, same=same)
    assert [each.tobytes() for each in got] == [each.tobytes() for each in want]
    assert [each.shape for each in got] == [each.shape for each in want]


@OPTIMIZERS
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("piece", [16, 1 << 16])
def test_a_shared_parameter_is_not_written(op_type, sparse, piece, monkeypatch):
    """One that is read-only gets its new value in other memory, with the same bits."""
    monkeypatch.setattr(optimizer, "PIECE", piece)
    param, grad, kept = case(op_type, 7, (40, 3), "float32")
    if sparse:
        grad = SelectedRows(np.array([1, 39, 1, 4]), grad[:4], 40)
    want = update(op_type, param.copy(), grad, [each.copy() for each in kept])
    held, before = param.copy(), param.tobytes()
    held.setflags(write=False)
    got = update(op_type, held, grad, kept)
    assert [each.tobytes() for each in got] == [each.tobytes() for each in want]
    assert held.tobytes() == before
    assert got[0].flags.writeable


@OPTIMIZERS
def test_a_gradient_without_rows_changes_nothing(op_type):
    param, _, kept = case(op_type, 1, (4, 3))
    none = SelectedRows(np.zeros(0, np.int64), np.zeros((0, 3)), 4)
    for got, want in zip(update(op_type, param, none, kept), [param, *kept], strict=True):
        np.testing.assert_array_equal(got, want)


def test_lazy_adam_does_not_change_other_rows():
    param, grad, kept = case("adam", 3, (6, 2))
    rows = np.array([4, 1, 4])
    attrs = ATTRS["adam"] | {"lazy_mode": True}
    lazy = update("adam", param, SelectedRows(rows, grad[:3], 6), kept, attrs=attrs)
    full = update("adam", param, SelectedRows(rows, grad[:3], 6), kept)
    for before, a, b in zip([param, *kept], lazy, full, strict=True):
        np.testing.assert_allclose(a[[1, 4]], b[[1, 4]], rtol=1e-12)
        np.testing.assert_array_equal(a[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


def test_adam_advances_its_powers_and_takes_betas_from_tensors():
    param, grad, kept = case("adam", 3, (6, 2))
    inputs = {"Param": param, "Grad": grad, "LearningRate": np.array([RATE]), "Moment1": kept[0], "Moment2": kept[1]}
    inputs |= {"Beta1Pow": np.array([0.5]), "Beta2Pow": np.array([0.25])}
    inputs |= {"Beta1Tensor": np.array([0.5]), "Beta2Tensor": np.array([0.125])}
    names = {f"{slot}Out": slot for slot in ("Param", "Moment1", "Moment2", "Beta1Pow", "Beta2Pow")}
    frame = compute("adam", inputs, names)
    assert frame.find("Beta1Pow").tolist() == [0.25]
    assert frame.find("Beta2Pow").tolist() == [0.03125]
    np.testing.assert_allclose(frame.find("Moment1"), 0.5 * kept[0] + 0.5 * grad)


def test_sgd_on_a_table_of_sparse_rows():
    table = SelectedRows(np.array([7, 3, 5]), np.ones((4, 2)), 10)
    grad = SelectedRows(np.array([5, 7, 5]), np.full((3, 2), 2.0), 10)
    inputs = {"Param": table, "Grad": grad, "LearningRate": np.array([0.5])}
    new = compute("sgd", inputs, {"ParamOut": "Param"}).find("Param")
    assert new.rows.tolist() == [7, 3, 5]
    assert new.value[:, 0].tolist() == [0.0, 1.0, -1.0, 1.0]
    with pytest.raises(DiagnosticError, match="Param has no row 4"):
        compute("sgd", inputs | {"Grad": grad._replace(rows=np.array([5, 4, 5]))}, {"ParamOut": "Param"})


def test_rows_outside_the_table_are_refused():
    param, grad, kept = case("adagrad", 1, (4, 2))
    for op_type, more in (("sgd", []), ("adagrad", kept), ("momentum", kept)):
        with pytest.raises(DiagnosticError, match="row 4 is not in 0 to 3"):
            update(op_type, param, SelectedRows(np.array([1, 4]), grad[:2], 4), more)


def test_moments_of_another_size_are_refused():
    param, grad, _ = case("momentum", 1, (4, 2))
    with pytest.raises(DiagnosticError, match="differ in size"):
        update("momentum", param, grad, [np.zeros((4, 3))])


def test_dgc_momentum_is_momentum_before_its_start_and_sgd_after():
    param, grad, kept = case("momentum", 1, (4, 2))
    inputs = {"Param": param, "Grad": grad, "Velocity": kept[0], "LearningRate": np.array([RATE])}
    inputs |= {"nranks": np.array([2.0])}
    outputs = {"ParamOut": "Param", "VelocityOut": "Velocity", "Grad_out": "Grad"}
    attrs = {"mu": 0.875, "use_nesterov": True, "rampup_begin_step": 5.0}
    before = compute("dgc_momentum", inputs | {"current_step": np.array([4.0])}, outputs, attrs)
    expected = momentum(param, grad / 2, kept[0])
    np.testing.assert_allclose(before.find("Param"), expected[0], rtol=1e-6)
    np.testing.assert_allclose(before.find("Velocity"), expected[1], rtol=1e-6)
    after = compute("dgc_momentum", inputs | {"current_step": np.array([5.0])}, outputs, attrs)
    np.testing.assert_allclose(after.find("Param"), param - RATE * grad / 2, rtol=1e-6)
    np.testing.assert_array_equal(after.find("Velocity"), kept[0])
    np.testing.assert_array_equal(after.find("Grad"), grad / 2)


def dpsgd_noise(param, grad, **attrs):
    """The noise that dpsgd added, by element."""
    inputs = {"Param": param, "Grad": grad, "LearningRate": np.array([1.0])}
    step = attrs.pop("step", 0)
    frame = compute("dpsgd", inputs, {"ParamOut": "Param"}, {"batch_size": 1.0, "clip": 100.0} | attrs, step=step)
    return param - frame.find("Param") - grad


def test_dpsgd_adds_one_noise_to_all_elements():
    param, grad, _ = case("sgd", 1, (4, 2))
    noise = dpsgd_noise(param, grad, sigma=0.5, seed=3)
    np.testing.assert_allclose(noise, noise[0, 0], rtol=1e-9)
    assert noise[0, 0] != 0
    np.testing.assert_allclose(dpsgd_noise(param, grad, sigma=0.5, seed=3), noise)
    drawn = {float(dpsgd_noise(param, grad, sigma=1.0, step=step)[0, 0]) for step in range(5)}
    assert len(drawn) == 5


def test_dpsgd_clips_by_norm():
    param, grad, _ = case("sgd", 1, (4, 2))
    inputs = {"Param": param, "Grad": grad, "LearningRate": np.array([1.0])}
    frame = compute("dpsgd", inputs, {"ParamOut": "Param"}, {"clip": 0.5, "sigma": 0.0})
    np.testing.assert_allclose(np.linalg.norm(frame.find("Param") - param), 0.5, rtol=1e-9)


def accumulate(updates, held, window, longest, shortest):
    names = ["sum_1", "sum_2", "sum_3", "num_accumulates", "old_num_accumulates"]
    names.append("num_updates")
    sums = [np.full((2, 3), 10.0**n) for n in (1, 2, 3)]
    counts = [np.array([n]) for n in (held, 7, updates)]
    inputs = {"param": np.ones((2, 3))} | {f"in_{n}": v for n, v in zip(names, [*sums, *counts], strict=True)}
    attrs = {"average_window": window, "max_average_window": Long(longest), "min_average_window": Long(shortest)}
    frame = compute("average_accumulates", inputs, {f"out_{n}": f"in_{n}" for n in names}, attrs)
    return [float(frame.find(f"in_{name}").reshape(-1)[0]) for name in names]


def test_average_accumulates():
    """Values of Fluid 1.8.5 for these inputs."""
    assert accumulate(0, 0, 0.5, 10, 2) == [11, 100, 1000, 1, 7, 1]
    assert accumulate(16383, 3, 0.15, 10000, 10000) == [0, 111, 1000, 4, 7, 16384]
    assert accumulate(9, 4, 0.15, 10000, 2) == [0, 0, 111, 0, 5, 10]
    assert accumulate(9, 7, 5.0, 7, 2) == [0, 0, 111, 0, 8, 10]
    assert accumulate(32767, 20000, 1.0, 10, 1) == [0, 0, 111, 0, 20001, 32768]


def test_noise_of_float64_is_fluids():
    """What Fluid 1.8.5 adds for this seed: the first number of the polar method over float64 uniforms, / batch_size."""
    param, rate = np.zeros(2), np.ones(1)
    attrs = {"clip": 10.0, "batch_size": 16.0, "sigma": 1.0, "seed": 23}
    inputs = {"Param": param, "Grad": np.zeros(2), "LearningRate": rate}
    found = compute("dpsgd", inputs, {"ParamOut": "Param"}, attrs).find("Param")
    assert found == pytest.approx([-0.6083735210298912 / 16] * 2, rel=1e-12)
