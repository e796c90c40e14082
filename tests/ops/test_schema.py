"""The declarations against what Fluid 1.8.5 registers (tests/data/op_schema.json), and how ops are declared."""

import json
from pathlib import Path

import pytest

from pstranspile.ir.attributes import AttrKind, Bools, Floats, Ints, Long, Longs, Strings, float32, kind_of
from pstranspile.ops import all_schemas, schema_of
from pstranspile.ops import schema as declarations
from pstranspile.ops.build import make_op
from pstranspile.ops.schema import (
    AttrSpec,
    OpSchema,
    Slicing,
    Slot,
    declare,
    declare_gradient,
    floats,
    ints,
    long,
    optional,
)

DATA = Path(__file__).parent.parent / "data"
FLUID = json.loads((DATA / "op_schema.json").read_text())
"""Op type -> [slots, attribute -> [kind] or [kind, default], forward op type of a gradient]."""
RECORDED = json.loads((DATA / "recorded_op_types.json").read_text())

NOT_REGISTERED = {
    "large_table": "Fluid has no tables of this kind",
    "large_table_state": "as large_table",
    "shrink_table": "a message of our own, by which rows leave large tables",
    **{f"bitwise_{name}": "an op of 2.x" for name in ("and", "not", "or", "xor")},
    "torch_step": "a step of another library, of our own",
    "torch_step_grad": "as torch_step",
    "while_grad": "its maker needs a sub-block; slots and attributes are those of recorded programs",
    "recurrent_grad": "as while_grad",
    "conditional_block_grad": "as while_grad",
}
EXTRA_SLOTS = {
    "sequence_pool_grad": {"MaxIndex": "given when pooltype is MAX"},
    "batch_norm_grad": {"Mean": "given with use_global_stats", "Variance": "given with use_global_stats"},
}
EXTRA_SLOTS["adadelta"] = {"LearningRate": "given with scaled"}
EXTRA_SLOTS["momentum"] = {"GradShare": "given with dampening, as PyTorch has it"}
EXTRA_SLOTS["adam"] = {"Moment2Max": "given with amsgrad, as PyTorch has it"}
EXTRA_SLOTS["adagrad"] = {"Updates": "given with rate_decay, as PyTorch has it"}
EXTRA_SLOTS["inplace_abn_grad"] = EXTRA_SLOTS["batch_norm_grad"]
EXTRA_OUTPUTS = {
    "yolov3_loss_grad": {"GTBox@GRAD", "GTLabel@GRAD", "GTScore@GRAD"},
    "lamb": {"Beta1PowOut", "Beta2PowOut"},
    "momentum": {"GradShareOut"},
    "adam": {"Moment2MaxOut"},
    "adagrad": {"UpdatesOut"},
}
"""Slots that the gradient op of a program names and leaves empty."""
EXTRA_ATTRS = {
    "pool2d_grad": set(schema_of("pool2d").attrs) - {"ksize", "pooling_type"},  # its maker copies those set
    "concat": {"num", "sections"},  # as gradient of split it carries the attributes of split
    "pool3d_grad": set(schema_of("pool3d").attrs) - {"ksize", "pooling_type"},
}
UNSCOPED = ("mean", "top_k", "bce_loss", "bmm", "index_sample", "meshgrid", "partial_concat", "partial_sum", "where")
EXTRA_ATTRS |= {f"{op_type}_grad": {"op_namescope"} for op_type in UNSCOPED}
EXTRA_ATTRS["reorder_lod_tensor_by_rank_grad"] = {"op_namescope"}
"""Gradient ops whose makers copy no attributes, as the makers of Fluid 1.8.5 show: see schema.UNSCOPED."""
VALUES = {"LONG": Long, "INTS": Ints, "LONGS": Longs, "STRINGS": Strings, "BOOLEANS": Bools}


def default(kind: str, value):
    """A default of the data file as an attribute value; None where there is none."""
    if kind == "FLOAT":
        return float32(value)
    if kind == "FLOATS":
        return Floats(map(float32, value))
    return VALUES[kind](value) if kind in VALUES else value


def slots_of(text: str) -> dict[str, Slot]:
    slots = [Slot(word.rstrip("*?~"), "*" in word, "?" in word, "~" in word) for word in text.split()]
    return {slot.name: slot for slot in slots}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch):
    """A registry of the test's own."""
    monkeypatch.setattr(declarations, "_REGISTRY", {})


@pytest.mark.parametrize("op_type", sorted(FLUID))
def test_declared_as_fluid_registers_it(op_type: str):
    slots, attrs, *forward = FLUID[op_type]
    schema = schema_of(op_type)
    assert schema is not None
    extra = EXTRA_SLOTS.get(op_type, {})
    inputs, outputs = (slots_of(side) for side in slots.split("->"))
    assert {name: slot for name, slot in schema.inputs.items() if name not in extra} == inputs
    extra_outputs = EXTRA_OUTPUTS.get(op_type, ())
    assert {name: slot for name, slot in schema.outputs.items() if name not in extra_outputs} == outputs
    own = {name for name, spec in schema.attrs.items() if not spec.later}
    assert own - EXTRA_ATTRS.get(op_type, set()) == set(attrs)
    for name, (kind, *value) in attrs.items():
        spec = schema.attrs[name]
        assert spec.kind is AttrKind[kind], name
        if value and AttrKind[kind] is not AttrKind.BLOCKS:
            assert spec.default == default(kind, *value), name
            assert spec.default is not None
            assert kind_of(spec.default) is AttrKind[kind], name
        elif not value:
            assert spec._replace(among=(), admitted=None) == AttrSpec(AttrKind[kind]), name
    if forward:
        assert schema.forward == forward[0]


def test_extra_slots_are_absent_unless_mentioned():
    for op_type, slots in EXTRA_SLOTS.items():
        schema = schema_of(op_type)
        assert schema is not None
        for slot in slots:
            assert schema.inputs[slot].dispensable
            assert slot not in schema.empty_inputs


def test_every_declared_type_is_known_to_fluid():
    assert set(all_schemas()) - set(FLUID) == set(NOT_REGISTERED)


@pytest.mark.parametrize("op_type", RECORDED)
def test_every_recorded_type_is_declared(op_type: str):
    assert schema_of(op_type) is not None


def test_every_forward_op_says_what_it_computes():
    assert [name for name, schema in all_schemas().items() if not schema.forward and not schema.doc] == []


GRADIENTS = sorted((schema for schema in all_schemas().values() if schema.forward), key=lambda schema: schema.type)


@pytest.mark.parametrize("schema", GRADIENTS, ids=lambda schema: schema.type)
def test_gradient_reads_the_slots_of_its_forward_op(schema: OpSchema):
    forward = schema_of(schema.forward)
    assert forward is not None
    own = set(forward.inputs) | set(forward.outputs)
    gradients = {f"{name}@GRAD" for name in own}
    assert set(schema.inputs) <= own | gradients
    assert set(schema.outputs) <= gradients | own  # data_norm_grad updates statistics, too


OPTIMIZERS = {
    "sgd": "",
    "momentum": "Velocity",
    "lars_momentum": "Velocity",
    "dgc_momentum": "Velocity",
    "adam": "Moment1 Moment2 Moment2Max",
    "adamax": "Moment InfNorm",
    "lamb": "Moment1 Moment2",
    "adagrad": "Moment",
    "decayed_adagrad": "Moment",
    "adadelta": "AvgSquaredGrad AvgSquaredUpdate",
    "rmsprop": "MeanSquare MeanGrad Moment",
    "ftrl": "SquaredAccumulator LinearAccumulator",
    "proximal_gd": "",
    "proximal_adagrad": "Moment",
    "dpsgd": "",
}
"""Optimizer -> its accumulators, which have the parameter's shape."""


def test_optimizers_are_the_ops_with_slicing():
    assert {name for name, schema in all_schemas().items() if schema.is_optimizer} == set(OPTIMIZERS)


@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_what_follows_a_sliced_parameter(op_type: str):
    schema = schema_of(op_type)
    assert schema is not None
    follows = {slot for slot, rule in schema.slicing.items() if rule is Slicing.FOLLOWS}
    inputs = {"Param", "Grad", *OPTIMIZERS[op_type].split()}
    assert follows & set(schema.inputs) == inputs
    assert set(schema.slicing) == set(schema.inputs) | set(schema.outputs)
    assert len(follows & set(schema.outputs)) == len(OPTIMIZERS[op_type].split()) + 1 + ("Grad_out" in follows)
    for slot in ("LearningRate", "Beta1Pow", "Beta1Tensor", "Beta1PowOut", "nranks"):
        assert schema.slicing.get(slot, Slicing.WHOLE) is Slicing.WHOLE


def test_whole_norm_and_row_wise():
    whole_norm = {name for name, schema in all_schemas().items() if schema.whole_norm}
    assert whole_norm == {"lars_momentum", "lamb", "dpsgd", "clip_by_norm", "dgc_clip_by_norm"}
    row_wise = {name for name, schema in all_schemas().items() if schema.row_wise}
    assert {"elementwise_add", "scale", "sum", "clip", "sign", "assign", "cast", "relu_grad"} <= row_wise
    assert not row_wise & (whole_norm | {"softmax", "reduce_sum", "mul", "matmul", "mean", "elementwise_add_grad"})


@pytest.mark.usefixtures("registry")
def test_slot_text():
    schema = declare(
        "op", "A B* C? D*? E- -> Out* Extra?", {"k": 1, "f": 0.1, "n": long(2), "s": ints(1), "o": optional("int")}
    )
    assert schema.inputs["D"] == Slot("D", duplicable=True, dispensable=True)
    assert schema.inputs["E"] == Slot("E", duplicable=False, dispensable=True)
    assert dict(schema.empty_inputs) == {"C": (), "D": ()}
    assert schema.outputs["Out"].duplicable
    assert schema.outputs["Extra"].dispensable
    assert schema.defaults["f"] == float32(0.1)
    assert type(schema.defaults["n"]) is Long
    assert type(schema.defaults["s"]) is Ints
    assert "o" not in schema.defaults
    assert schema.attrs["o"].optional
    assert schema.defaults["op_namescope"] == "/"


@pytest.mark.usefixtures("registry")
def test_gradient_takes_the_attributes_of_its_forward_op():
    declare("op", "X -> Out", {"scale": floats(0.5)})
    assert declare_gradient("op", "X Out@GRAD -> X@GRAD").attrs["scale"].default == Floats([0.5])
    assert declare_gradient("op", "X -> X@GRAD", {}, op_type="op_grad2").attrs == {}


@pytest.mark.usefixtures("registry")
def test_declared_twice():
    declare("op", "X -> Out")
    with pytest.raises(ValueError, match="op is declared twice"):
        declare("op", "X -> Out")


@pytest.mark.usefixtures("registry")
def test_follows_an_unknown_slot():
    with pytest.raises(ValueError, match="op has no slot Parm"):
        declare("op", "Param -> ParamOut", follows="Parm")


def test_made_ops_carry_defaults_and_empty_slots():
    op = make_op("mean_grad", {"X": ["x"], "Out@GRAD": ["g"]}, {"X@GRAD": ["x@GRAD"]})
    assert op.attrs == {"op_device": ""}
    op = make_op("scale", {"X": ["x"]}, {"Out": ["y"]}, {"scale": 2.0})
    assert op.inputs == {"X": ("x",), "ScaleTensor": ()}
    assert op.attrs == {
        "scale": 2.0,
        "bias": 0.0,
        "bias_after_scale": True,
        "op_namescope": "/",
        "op_device": "",
    }
