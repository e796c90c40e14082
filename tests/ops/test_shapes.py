"""Shape rules: against recorded runs of single ops, against numpy, and what they say of ops that don't fit."""

import json
import os
import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pstranspile.compiler.verify.walk import reliable
from pstranspile.ir.attributes import PYTHON_TYPES, AttrKind, Ints, Long
from pstranspile.ir.model import Block, Program, TensorType, Var
from pstranspile.ir.types import DTYPES, DType, VarKind
from pstranspile.ops import all_schemas, schema_of
from pstranspile.ops.shapes import ShapeError, describe, fits, infer_types, rule_of, shape_rule
from pstranspile.ops.work import memory_traffic, operations
from tests.ops.typed import infer, op_and_types, problems
from tests.structure.edits import other_value

DATA = Path(__file__).parent.parent / "data"
RECORDED = json.loads((DATA / "recorded_op_types.json").read_text())
CASES = json.loads((DATA / "op_types.json").read_text())
"""Recorded runs of one op: type, input types, attributes that differ from the default, output types."""

ROUNDS = max(int(os.environ.get("PSTRANSPILE_EDITS", "320")) // 20, 1)
"""How often each of the cases is edited."""

WITHOUT_RULE = {
    *("send", "recv", "send_barrier", "fetch_barrier", "prefetch", "checkpoint_notify", "recv_save", "fake_init"),
    *("listen_and_serv", "fl_listen_and_serv", "gen_nccl_id", "c_gen_nccl_id", "c_comm_init", "c_comm_init_all"),
    *("while", "while_grad", "conditional_block", "conditional_block_grad", "recurrent", "recurrent_grad"),
    *("feed", "fetch", "read", "create_py_reader", "create_double_buffer_reader", "delete_var"),
    *("save", "load", "save_combine", "load_combine", "lod_tensor_to_array"),
    *("split_ids", "merge_ids", "split_selected_rows", "lookup_sparse_table"),
    *("pull_sparse", "pull_sparse_v2", "push_dense"),
}
"""Ops whose outputs depend on what other machines, files, ids or sub-blocks hold."""


def recorded(case: list) -> tuple:
    op_type, inputs, attrs, outputs = case

    def read(slots: dict) -> dict:
        return {
            slot: [held and TensorType(DTYPES[held[0]], tuple(held[1]), *held[2:]) for held in items]
            for slot, items in slots.items()
        }

    values = {name: PYTHON_TYPES[AttrKind[kind]](value) for name, (kind, value) in attrs.items()}
    return op_type, read(inputs), values, read(outputs)


def test_which_ops_have_a_rule():
    declared = set(all_schemas())
    assert declared >= WITHOUT_RULE | set(RECORDED)
    assert {name for name in RECORDED if rule_of(name) is None} == WITHOUT_RULE & set(RECORDED)
    assert {name for name in WITHOUT_RULE if rule_of(name)} == set()


def test_recorded_runs_agree():
    disagreeing = [(case[0], found) for case in CASES if (found := problems(*recorded(case)))]
    assert disagreeing == []


def test_recorded_runs_have_work():
    """The operations and the bytes of every recorded run are numbers from 0 on."""
    for case in CASES:
        op, types = op_and_types(*recorded(case))
        slots = [
            {slot: tuple(types[name] for name in names) for slot, names in s.items()} for s in (op.inputs, op.outputs)
        ]
        assert 0 <= operations(op, *slots) < 1e9, case
        assert 0 <= memory_traffic(op, *slots) < 1e9, case


def test_unknown_dims_never_disagree():
    """With any dim of the inputs unknown, a recorded run still agrees."""
    for case in CASES:
        op_type, inputs, attrs, outputs = recorded(case)
        for slot, items in inputs.items():
            for at, held in enumerate(items):
                for dim in range(len(held.shape) if held else 0):
                    shape = (*held.shape[:dim], -1, *held.shape[dim + 1 :])
                    blurred = {**inputs, slot: [*items[:at], held._replace(shape=shape), *items[at + 1 :]]}
                    assert problems(op_type, blurred, attrs, outputs) == [], case


def test_unknown_types_never_disagree():
    for case in CASES:
        op_type, inputs, attrs, outputs = recorded(case)
        for slot, items in inputs.items():
            assert problems(op_type, {**inputs, slot: [None] * len(items)}, attrs, outputs) == [], case


def test_a_wrong_dtype_is_reported():
    """Wherever a rule gives an output type, declaring another element type is a problem."""
    checked = 0
    for case in CASES:
        op_type, inputs, attrs, outputs = recorded(case)
        op, types = op_and_types(op_type, inputs, attrs, outputs)
        for slot, items in infer_types(op, types.get).items():
            if items and items[0] is not None and items[0].shape and slot in outputs:
                wrong = DType.FP16 if items[0].dtype is not DType.FP16 else DType.FP32
                outputs_then = {**outputs, slot: [TensorType(wrong, items[0].shape), *outputs[slot][1:]]}
                assert len(problems(op_type, inputs, attrs, outputs_then)) == 1, case
                checked += 1
    assert checked > len(CASES) * 0.9


def test_rules_raise_nothing_else_whatever_they_are_given():
    """Other attributes and types than the recorded ones, in any number."""
    nothing = Program((Block(),))
    for turn, case in product(range(ROUNDS), CASES):
        op_type, inputs, attrs, outputs = recorded(case)
        draw = random.Random(f"{turn}{case}")
        schema = schema_of(op_type)
        attrs = {**(schema.defaults if schema else {}), **attrs}
        for _ in range(draw.choice((1, 2, 3))):
            if attrs and draw.random() < 0.4:
                name = draw.choice(sorted(attrs))
                value = other_value(attrs[name], nothing, draw)
                attrs[name] = value if type(value) is type(attrs[name]) else attrs[name]
            elif inputs:
                slot = draw.choice(sorted(inputs))
                inputs = {**inputs, slot: _other_types(inputs[slot], draw)}
        op, types = op_and_types(op_type, inputs, attrs, outputs)
        try:
            infer_types(op, types.get)
        except ShapeError:
            continue
        except Exception as problem:
            problem.add_note(f"turn {turn}: {op}, {types}")
            raise


def _other_types(types: list[TensorType | None], draw: random.Random) -> list[TensorType | None]:
    """One of them is missing, given twice, or of other dims or another element type."""
    if not types:
        return types
    at = draw.randrange(len(types))
    held, way = types[at], draw.randrange(8)
    if held is None or way == 0:
        return [*types[:at], None, *types[at + 1 :]]
    shape = list(held.shape)
    if way == 1:
        return types[:at] + types[at + 1 :]
    if way == 2:
        return [*types, held]
    if way == 3:
        return [*types[:at], held._replace(dtype=draw.choice(list(DTYPES.values()))), *types[at + 1 :]]
    if way == 4:
        shape.append(draw.choice((-1, 1, 3)))
    elif way == 5 and shape:
        shape.pop(draw.randrange(len(shape)))
    elif way == 6 and shape:
        shape[draw.randrange(len(shape))] = draw.choice((-1, 0, 1, 2, 7, 1 << 40))
    else:
        shape.clear()
    return [*types[:at], held._replace(shape=tuple(shape)), *types[at + 1 :]]


dims = st.integers(1, 4)


@settings(deadline=None)
@given(st.lists(dims, min_size=1, max_size=4), st.data())
def test_elementwise_broadcasts_as_numpy_does(shape: list[int], data: st.DataObject):
    tail = shape[data.draw(st.integers(0, len(shape) - 1)) :]
    other = [data.draw(st.sampled_from([1, dim])) for dim in tail]
    want = np.broadcast_shapes(tuple(shape), tuple(other))
    x, y = TensorType(DType.FP32, tuple(shape)), TensorType(DType.FP32, tuple(other))
    assert infer("elementwise_add", {"X": x, "Y": y}) == {"Out": [describe(TensorType(DType.FP32, want))]}
    assert infer("less_than", {"X": x, "Y": y}) == {"Out": [describe(TensorType(DType.BOOL, want))]}


def test_what_is_not_known_stays_so_as_in_fluid() -> None:
    unknown, known = TensorType(DType.FP32, (-1, 1, -8)), TensorType(DType.FP32, (0, 1, 1))
    found = infer("elementwise_add", {"X": unknown, "Y": known})
    assert found == {"Out": [describe(TensorType(DType.FP32, (-1, 1, -1)))]}
    images = TensorType(DType.FP32, (-1, 3, -1, 4))
    found = infer("pool2d", {"X": images}, {"pooling_type": "avg", "ksize": Ints([1, 1]), "global_pooling": True})
    assert found == {"Out": [describe(TensorType(DType.FP32, (-1, 3, -1, 1)))]}


@settings(deadline=None)
@given(st.lists(dims, min_size=2, max_size=4), st.booleans(), st.booleans(), dims)
def test_matmul_as_numpy_does(shape: list[int], turn_x: bool, turn_y: bool, columns: int):
    rows, inner = shape[-2:]
    x = (*shape[:-2], inner, rows) if turn_x else (*shape[:-2], rows, inner)
    y = (*shape[:-2], columns, inner) if turn_y else (*shape[:-2], inner, columns)
    found = infer(
        "matmul",
        {"X": TensorType(DType.FP64, x), "Y": TensorType(DType.FP64, y)},
        {"transpose_X": turn_x, "transpose_Y": turn_y},
    )
    assert found == {"Out": [describe(TensorType(DType.FP64, (*shape[:-2], rows, columns)))]}


@settings(deadline=None)
@given(st.lists(dims, min_size=1, max_size=4), st.data())
def test_reductions_as_numpy_does(shape: list[int], data: st.DataObject):
    over = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda d: d % len(shape)))
    keep = data.draw(st.booleans())
    want = np.zeros(shape).sum(axis=tuple(over), keepdims=keep).shape or (1,)
    found = infer("reduce_sum", {"X": TensorType(DType.FP32, tuple(shape))}, {"dim": Ints(over), "keep_dim": keep})
    assert found == {"Out": [describe(TensorType(DType.FP32, want))]}


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_slices_as_python_does(shape: list[int], data: st.DataObject):
    axis = data.draw(st.integers(0, len(shape) - 1))
    start, end = data.draw(st.integers(-8, 8)), data.draw(st.integers(-8, 8))
    index = tuple(slice(start, end) if at == axis else slice(None) for at in range(len(shape)))
    found = infer(
        "slice",
        {"Input": TensorType(DType.FP32, tuple(shape))},
        {"axes": Ints([axis]), "starts": Ints([start]), "ends": Ints([end])},
    )
    assert found == {"Out": [describe(TensorType(DType.FP32, np.zeros(shape)[index].shape))]}


@settings(deadline=None)
@given(st.lists(dims, min_size=1, max_size=3), st.lists(dims, min_size=1, max_size=4), st.data())
def test_concat_and_split_undo_each_other(shape: list[int], sections: list[int], data: st.DataObject):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = [
        TensorType(DType.FP32, tuple({axis % len(shape): n}.get(at, dim) for at, dim in enumerate(shape)))
        for n in sections
    ]
    (whole,) = infer("concat", {"X": parts}, {"axis": axis})["Out"]
    found = infer("split", {"X": whole}, {"axis": axis, "sections": Ints(sections)})
    assert found == {"Out": [describe(part) for part in parts]}


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "outputs"),
    [
        ("mul", {"X": "f32[-1, 784]", "Y": "f32[784, 10]"}, {}, {"Out": ["f32[-1, 10]"]}),
        ("mul", {"X": "f32[-1, 2, 3]", "Y": "f32[6, 4]"}, {}, {"Out": ["f32[-1, 4]"]}),
        (
            "reshape2",
            {"X": "f32[-1, 4, 6]"},
            {"shape": Ints([0, 0, 2, 3])},
            {"Out": ["f32[-1, 4, 2, 3]"], "XShape": ["f32[0, -1, 4, 6]"]},
        ),
        ("reshape2", {"X": "f32[2, 6]"}, {"shape": Ints([-1, 3])}, {"Out": ["f32[4, 3]"], "XShape": ["f32[0, 2, 6]"]}),
        (
            "conv2d",
            {"Input": "f32[-1, 1, 28, 28]", "Filter": "f32[20, 1, 5, 5]"},
            {},
            {"Output": ["f32[-1, 20, 24, 24]"]},
        ),
        (
            "pool2d",
            {"X": "f32[-1, 20, 24, 24]"},
            {"pooling_type": "max", "ksize": Ints([2, 2]), "strides": Ints([2, 2])},
            {"Out": ["f32[-1, 20, 12, 12]"]},
        ),
        ("lookup_table", {"W": "f32[100, 16]", "Ids": "i64[-1, 1]"}, {}, {"Out": ["f32[-1, 16]"]}),
        ("lookup_table_v2", {"W": "f32[100, 16]", "Ids": "i64[-1, 7]"}, {}, {"Out": ["f32[-1, 7, 16]"]}),
        ("cast", {"X": "i64[-1, 1]"}, {"in_dtype": 3, "out_dtype": 5}, {"Out": ["f32[-1, 1]"]}),
        ("top_k", {"X": "f32[-1, 10]"}, {"k": 5}, {"Out": ["f32[-1, 5]"], "Indices": ["i64[-1, 5]"]}),
        ("split", {"X": "f32[-1, 9]"}, {"axis": 1, "num": 3}, {"Out": ["f32[-1, 3]"] * 3}),
        ("stack", {"X": ["f32[2]", "f32[2]", "f32[2]"]}, {"axis": 1}, {"Y": ["f32[2, 3]"]}),
        ("arg_max", {"X": "f32[4, 5]"}, {"axis": Long(-1)}, {"Out": ["i64[4]"]}),
        ("sequence_expand", {"X": "f32[-1, 8]", "Y": TensorType(DType.FP32, (-1, 1), 1)}, {}, {"Out": ["f32[-1, 8]"]}),
        ("relu_grad", {"Out": "f32[3]", "Out@GRAD": "f32[3]"}, {}, {}),
    ],
)
def test_what_ops_give(op_type: str, inputs: dict, attrs: dict, outputs: dict):
    assert infer(op_type, inputs, attrs) == outputs


def test_gradients_have_the_type_of_their_variable():
    inputs = {"X": "f32[-1, 4]", "Y": "f32[4, 2]", "Out@GRAD": "f32[-1, 2]"}
    assert problems("mul_grad", inputs, {}, {"X@GRAD": "f32[8, 4]", "Y@GRAD": "f32[4, 2]"}) == []
    assert problems("mul_grad", inputs, {}, {"Y@GRAD": "f32[2, 4]"}) == [
        "%Y@GRAD.0 is declared f32[2, 4], the op gives f32[4, 2]"
    ]
    assert problems("relu_grad", {"Out@GRAD": "f32[3, 4]"}, {}, {"X@GRAD": "f32[4, 3]"}) == [
        "%X@GRAD.0 is declared f32[4, 3], the op gives f32[3, 4]"
    ]


def test_number_of_outputs():
    assert problems("split", {"X": "f32[6]"}, {"num": 3}, {"Out": ["f32[2]", "f32[2]"]}) == [
        "Out has 2 variables, the op gives 3"
    ]


def test_declared_types_that_say_less_than_they_seem_to():
    bool_, rows = TensorType(DType.BOOL, (3,)), TensorType(DType.FP32, (100, 4))
    assert reliable(Var("x")) is None
    assert reliable(Var("x", tensor=bool_)) == bool_
    assert reliable(Var("x", tensor=bool_, persistable=True)) is None
    assert reliable(Var("x", VarKind.SELECTED_ROWS, rows)) == rows._replace(shape=(-1, 4))


def test_fits():
    assert fits((2, -1), (-1, 3))
    assert fits((), ())
    assert not fits((2,), (2, 1))
    assert not fits((2, 3), (2, 4))


def test_two_rules_for_one_op():
    with pytest.raises(ValueError, match="mul has two shape rules"):
        shape_rule("mul")(lambda _op, types: types)
