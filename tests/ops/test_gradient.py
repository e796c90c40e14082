"""Gradient ops against what Fluid's own makers give (tests/data/gradient_ops.json, recorded from Fluid 1.8.5)."""

import json
from pathlib import Path

import pytest

from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.model import FrozenMap, Op
from pstranspile.ir.types import OpRole
from pstranspile.ops import all_schemas, schema_of
from pstranspile.ops.gradient import WantedGradients, differentiable_types, gradient_name, gradient_rule

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "gradient_ops.json").read_text(encoding="utf-8"))
ATTRS: dict[str, AttrValue] = {
    "op_namescope": "/z/",
    "axis": 1,
    "in_dtype": 5,
    "out_dtype": 6,
    "scale": 2.0,
    "step": 2.0,
    "num": 2,
}


def filled(op_type: str) -> Op:
    """A forward op with every slot filled, as the recording asked for."""
    schema = schema_of(op_type)
    assert schema is not None

    def names(slots: FrozenMap, mark: str):
        return FrozenMap(
            {
                name: tuple(f"{name}.{mark}{i}" for i in range(2 if slot.duplicable else 1))
                for name, slot in slots.items()
            }
        )

    inputs, outputs = names(schema.inputs, "i"), names(schema.outputs, "o")
    return Op(op_type, inputs, outputs, FrozenMap(ATTRS), OpRole.FORWARD, ("q",))


def slots(held: FrozenMap) -> dict[str, list[str]]:
    return {slot: list(names) for slot, names in held.items() if names}


def described(op: Op) -> list[object]:
    attrs = dict(op.attrs)
    if op.role_vars is not None:
        attrs |= {"op_role_var": list(op.role_vars), "op_role": 0}
    return [op.type, slots(op.inputs), slots(op.outputs), attrs]


@pytest.mark.parametrize("op_type", sorted(RECORDED))
def test_gradient_ops_are_fluids(op_type: str):
    expected, none_wanted = RECORDED[op_type]
    rule = gradient_rule(op_type)
    if not expected:
        assert rule is None
        return
    assert rule is not None
    op = filled(op_type)
    assert [described(made) for made in rule(op, WantedGradients())] == expected
    unwanted = WantedGradients(frozenset(gradient_name(name) for name in op.input_names))
    made = rule(op, unwanted)
    assert [[op.type, slots(op.outputs)] for op in made][: len(none_wanted)] == [
        [op_type, {slot: names for slot, names in outputs.items() if names}] for op_type, outputs in none_wanted
    ]


def test_every_differentiable_type_makes_declared_ops():
    for op_type in differentiable_types():
        if "sub_block" in (schema_of(op_type) or pytest.fail(op_type)).attrs or op_type not in RECORDED:
            continue
        rule = gradient_rule(op_type)
        assert rule is not None
        for made in rule(filled(op_type), WantedGradients()):
            schema = all_schemas()[made.type]
            assert set(made.inputs) <= set(schema.inputs)
            assert set(made.outputs) <= set(schema.outputs)


def test_reading_statistics_of_batch_norm():
    op = filled("batch_norm")
    rule = gradient_rule("batch_norm")
    assert rule is not None
    (trained,) = rule(op._replace(attrs=FrozenMap({"use_global_stats": False})), WantedGradients())
    (fixed,) = rule(op._replace(attrs=FrozenMap({"use_global_stats": True})), WantedGradients())
    assert set(fixed.inputs) - set(trained.inputs) == {"Mean", "Variance"}


def test_index_of_maxima_in_pooled_sequences():
    op = filled("sequence_pool")
    rule = gradient_rule("sequence_pool")
    assert rule is not None
    (maximum,) = rule(op._replace(attrs=FrozenMap({"pooltype": "MAX"})), WantedGradients())
    (average,) = rule(op._replace(attrs=FrozenMap({"pooltype": "AVERAGE"})), WantedGradients())
    assert maximum.inputs["MaxIndex"] == ("MaxIndex.o0",)
    assert "MaxIndex" not in average.inputs


def test_a_rule_is_registered_once():
    from pstranspile.ops.gradient import gradient

    with pytest.raises(ValueError, match="two gradient rules"):
        gradient("sum")(lambda op, wanted: ())
