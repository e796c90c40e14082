"""Names, values and refusals of the layers."""

from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.layers.draft import Names, Scopes, names_in_use
from pstranspile.frontends.layers.parameters import start_all_with
from pstranspile.ir.types import DType
from pstranspile.ops.shapes import ShapeError


def model_and_x(width: int = 3) -> tuple[L.Draft, L.Value]:
    model = L.Draft(seed=1)
    return model, L.data(model, "x", [-1, width])


def test_names_go_on_after_those_in_use():
    names = Names()
    names.skip("fc_3.w_1")
    assert (names.mint("fc"), names.mint("fc_3.w"), names.mint("other")) == ("fc_4", "fc_3.w_2", "other_0")


def test_scopes_entered_again_are_numbered():
    scopes = Scopes()
    paths: list[str] = []
    for _ in range(2):
        with scopes.enter_scope("outer"), scopes.enter_scope("inner"):
            paths.append(scopes.path)
    assert paths == ["/outer/inner/", "/outer_1/inner/"]
    assert scopes.path == "/"


def test_scopes_go_on_after_those_in_use():
    scopes = Scopes()
    scopes.skip("/optimizer_2/scale/")
    with scopes.enter_scope("optimizer"):
        assert scopes.path == "/optimizer_3/"


def test_names_in_use_reads_programs():
    model, x = model_and_x()
    L.fc(x, 2)
    names, _ = names_in_use(model.module().programs.values())
    assert (names.mint("fc"), names.mint("fc_0.w"), names.mint("fc_0.tmp")) == ("fc_1", "fc_0.w_1", "fc_0.tmp_2")


def test_arithmetic_computes():
    model, x = model_and_x()
    out = [2.0 * x + 1.0, 1.0 - x, x / 4.0, x * x - x, 2.0**x, x**2.0, 6.0 / (x + 10.0), -x]
    held = np.array([[1.0, 2.0, 3.0]], dtype="float32")
    found = ps.run(model.main(), feed={"x": held}, fetch=[value.name for value in out])
    expected = [2 * held + 1, 1 - held, held / 4, held * held - held, 2**held, held**2, 6 / (held + 10), -held]
    for value, right in zip(out, expected, strict=True):
        assert np.allclose(found[value.name], right)


def test_comparisons_are_ops():
    model, x = model_and_x()
    assert (x < 2.0).dtype is DType.BOOL
    assert x.equal(x).dtype is DType.BOOL
    assert [op.type for op in model.blocks[0].ops] == ["fill_constant", "less_than", "equal"]


def test_values_tell_their_type():
    _, x = model_and_x()
    assert (x.shape, x.dtype, x.lod_level, repr(x)) == ((-1, 3), DType.FP32, 0, "%x")
    hidden = L.fc(x, 5, act="relu")
    assert (hidden.name, hidden.shape) == ("fc_0.tmp_2", (-1, 5))


def test_inputs_that_do_not_fit_are_refused_where_they_are_used():
    model, x = model_and_x()
    y = L.data(model, "y", [-1, 4])
    with pytest.raises(ShapeError, match=r"f32\[-1, 4\]"):
        L.elementwise_add(x, y)


def test_shared_parameters_have_one_shape_and_one_initialiser():
    model, x = model_and_x()
    L.fc(x, 3, param_attr="shared", bias_attr=False)
    L.fc(x, 3, param_attr="shared", bias_attr=False)
    assert [op.type for op in model.startup.all_ops()] == ["uniform_random"]
    with pytest.raises(ValueError, match=r"%shared is shared, with the dims \[3, 3\] and \[3, 4\]"):
        L.fc(x, 4, param_attr="shared")


def test_a_weight_cannot_be_left_out():
    _, x = model_and_x()
    with pytest.raises(ValueError, match="can't do without this parameter"):
        L.fc(x, 4, param_attr=False)


def test_as_many_attributes_as_inputs():
    _, x = model_and_x()
    with pytest.raises(ValueError, match="2 inputs and 1 param_attr"):
        L.fc([x, x], 4, param_attr=["a"])


def test_attributes_are_checked():
    model, x = model_and_x()
    with pytest.raises(KeyError, match="relu has no attribute alpha"):
        model.op("relu", {"X": x}, {"Out": "y"}, {"alpha": 1.0})
    with pytest.raises(TypeError, match="axis is an integer"):
        model.op("softmax", {"X": x}, {"Out": "y"}, {"axis": 1.5})
    with pytest.raises(KeyError, match="no_such_op is not declared"):
        model.op("no_such_op", {"X": x}, {"Out": "y"})


def test_array_initialisers_fit_their_parameter():
    _, x = model_and_x()
    with pytest.raises(ValueError, match=r"has the dims \[3, 2\], the array \[2\]"):
        L.fc(x, 2, param_attr=L.ParamAttr(initializer=L.Array(np.zeros(2))))


def test_parameters_start_alike_until_that_is_taken_back():
    model, x = model_and_x()
    start_all_with(L.Constant(2.0), None)
    try:
        L.fc(x, 2)
    finally:
        start_all_with(None, None)
    L.fc(x, 2, bias_attr=False)
    assert [op.type for op in model.startup.all_ops()] == ["uniform_random", "fill_constant", "fill_constant"]


def test_wrong_settings_of_layers():
    model, x = model_and_x()
    image = L.data(model, "image", [-1, 3, 8, 8])
    with pytest.raises(ValueError, match="which 2 groups can't share"):
        L.conv2d(image, 4, 3, groups=2)
    with pytest.raises(ValueError, match="it must be numbers, 'SAME' or 'VALID'"):
        L.conv2d(image, 4, 3, padding="EVEN")
    with pytest.raises(ValueError, match="it must be 'max' or 'avg'"):
        L.pool2d(image, 2, pool_type="sum")
    with pytest.raises(ValueError, match="needs a pool_size"):
        L.pool2d(image)
    with pytest.raises(ValueError, match="must be one of uniform, log_uniform, custom_dist"):
        L.nce(x, L.data(model, "label", [-1, 1], "i64"), 10, sampler="zipf")
    with pytest.raises(ValueError, match="a default comes after at least one case"), L.Switch().default():
        pass


def test_recurrent_networks_are_complete():
    model = L.Draft(seed=1)
    steps, start = L.data(model, "steps", [4, 2, 3]), L.data(model, "start", [2, 3])
    rnn = L.StaticRNN(model)
    with pytest.raises(ValueError, match="starts with %start is never updated"), rnn.step():
        rnn.memory(start)
    with pytest.raises(ValueError, match="has no step_output"):
        rnn.outputs()
    other = L.StaticRNN(model)
    other.step_input(steps)
    longer = L.data(model, "longer", [5, 2, 3])
    with pytest.raises(ValueError, match="has 5 steps, the inputs before it 4"):
        other.step_input(longer)


def test_what_is_built_verifies_and_prints():
    model, x = model_and_x()
    L.mean(L.fc(x, 2, act="tanh"))
    module = model.module()
    assert list(ps.verify(module)) == []
    assert ps.loads(ps.dumps(module)) == module


@pytest.mark.parametrize("wrong", [6, None, [1], "bfloat"])
def test_what_is_no_element_type_is_refused(wrong: object):
    model, x = model_and_x()
    kinds: tuple[Any, ...] = (wrong,)
    for make in (lambda: L.cast(x, *kinds), lambda: L.fill_constant(model, [1], *kinds, 1.0)):
        with pytest.raises(ValueError, match="is no element type; known are bool, "):
            make()
    assert L.cast(x, "int64").dtype is DType.INT64
