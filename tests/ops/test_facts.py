"""The facts that declarations state, and that they fit together and with what else is known of the ops."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pstranspile.cluster.machines import rpc
from pstranspile.ops import all_schemas, facts_of, schema_of
from pstranspile.ops import facts as facts_module
from pstranspile.ops.build import typed_slots
from pstranspile.ops.facts import PLAIN, Below, OpFacts
from pstranspile.ops.schema import OpSchema, declare, declare_gradient, op_schemas
from pstranspile.runtime.kernels.kernel import kernel_of

SCHEMAS = all_schemas()


def having(**facts: Any) -> list[OpSchema]:
    """The declarations that state these facts."""
    found = [s for s in SCHEMAS.values() if all(getattr(s.facts, name) == value for name, value in facts.items())]
    assert found
    return found


def stating(fact: str) -> list[OpSchema]:
    """The declarations in which a fact is not the ordinary one."""
    found = [s for s in SCHEMAS.values() if getattr(s.facts, fact) != getattr(PLAIN, fact)]
    assert found
    return found


@pytest.fixture
def declared() -> Iterator[None]:
    """Forgets the op types that a test declares."""
    known = dict(op_schemas())
    yield
    for name in [name for name in op_schemas() if name not in known]:
        op_schemas().pop(name)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_declaration_can_state_every_fact_and_no_other():
    tree = ast.parse(Path(facts_module.__file__).read_text(encoding="utf-8"))
    (stated,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "StatedFacts"]
    fields = [node for node in stated.body if isinstance(node, ast.AnnAssign)]
    assert tuple(ast.unparse(field.target) for field in fields) == OpFacts._fields


def test_the_guide_lists_every_fact_with_its_default():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "write_a_pass.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(.*?)` \|", guide, re.MULTILINE)
    listed = {name: ast.literal_eval(default) for names, default in rows for name in re.findall(r"\w+", names)}
    assert listed == PLAIN._asdict()


def test_an_op_whose_declaration_states_none_and_an_unknown_op_have_the_ordinary_facts():
    assert facts_of("sign") is PLAIN
    assert facts_of("no_such_op") is PLAIN


@pytest.mark.usefixtures("declared")
def test_an_op_of_another_module_states_facts_too():
    declare("my_pick", "X Mask -> Out", rows="own", row_order="by_values", domains={"Mask": "binary"})
    declare_gradient("my_pick", "X Mask Out@GRAD -> X@GRAD", linear=True, result_lod="none")
    assert facts_of("my_pick") == PLAIN._replace(rows="own", row_order="by_values", domains={"Mask": "binary"})
    assert facts_of("my_pick_grad") == PLAIN._replace(linear=True, result_lod="none")
    with pytest.raises(TypeError, match="does not change"):
        facts_of("my_pick").domains["Mask"] = "positive"  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"row": "own"}, "there is no fact 'row'; there are communicates, "),
        ({"rows": "other"}, "rows is 'other', not one of 'kept', 'own'"),
        ({"communicates": "nobody"}, "communicates is 'nobody', not one of '', 'request'"),
        ({"draws": "no"}, "draws is 'no', not a bool"),
        ({"sends": "Out"}, "sends is 'Out', which is no input slot"),
        ({"looks_up": "W"}, "looks_up is 'W', which is no input slot"),
        ({"receives": "X"}, "receives is 'X', which is no output slot"),
        ({"sparse_gradient": "W@GRAD"}, "sparse_gradient is 'W@GRAD', which is no output slot"),
        ({"typed_by": "dtype"}, "typed_by is 'dtype', which is neither an input slot nor an attribute"),
        ({"domains": {"Y": "binary"}}, "domains has 'Y', which is no input slot"),
        (
            {"domains": {"X": "negative"}},
            "X is 'negative', not 'binary', 'positive', 'zero', Below(...), Within(...) or AmongThose(...)",
        ),
        ({"domains": {"X": Below("W", 0)}}, "below 'W', which is no input slot"),
        ({"domains": {"X": Below("depth")}}, "below 'depth', which is no attribute"),
    ],
)
def test_facts_that_an_op_cannot_have_are_refused(facts: dict[str, Any], words: str):
    with pytest.raises(ValueError, match="my_op: ") as caught:
        declare("my_op", "X -> Out", **facts)
    assert words in str(caught.value)
    assert "my_op" not in op_schemas()


def test_ops_that_communicate():
    assert {s.type for s in having(communicates="collective")} == {
        *("c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod", "c_broadcast", "c_allgather"),
        *("c_reducescatter", "allreduce", "broadcast"),
    }
    assert {s.type for s in having(communicates="request")} == {
        *("send", "recv", "send_barrier", "fetch_barrier", "prefetch", "distributed_lookup_table"),
    }
    assert {s.type for s in having(communicates="command")} == {"checkpoint_notify", "recv_save", "shrink_table"}
    assert {s.type for s in having(communicates="server")} == {"listen_and_serv", "fl_listen_and_serv"}
    assert {s.type for s in having(communicates="stream")} == {"c_sync_calc_stream", "c_sync_comm_stream"}
    named = [s for name, s in SCHEMAS.items() if name.startswith("c_") or "nccl" in name]
    assert named
    assert [s.type for s in named if not s.facts.communicates] == []


def test_trainers_carry_out_every_request_and_command():
    asking = {s.type for kind in ("request", "command") for s in having(communicates=kind)}
    assert asking == rpc._MAKERS.keys()


def test_only_ops_that_communicate_send_and_receive():
    for fact in ("sends", "receives"):
        assert {s.facts.communicates for s in stating(fact)} == {"request", "collective"}
    assert {s.facts.communicates for s in stating("all_reduce")} == {"collective"}
    for schema in having(communicates="collective"):
        assert (schema.facts.sends, schema.facts.receives) == ("X", "Out")


def test_lookups_and_sparse_gradients_belong_together():
    remote = {s.type for s in SCHEMAS.values() if "table_names" in s.attrs and not s.forward}
    assert {s.type for s in stating("looks_up")} == remote
    assert {s.type for s in SCHEMAS.values() if s.table_lookup} <= remote
    sparse = {s.type for s in SCHEMAS.values() if "is_sparse" in s.attrs and s.forward}
    assert {s.type for s in stating("sparse_gradient")} == sparse
    for schema in stating("sparse_gradient"):
        forward = schema_of(schema.forward)
        assert forward is not None
        table = schema.facts.sparse_gradient.removesuffix("@GRAD")
        assert table in schema.inputs
        assert forward.facts.looks_up in ("", table)


def test_only_gradient_ops_have_the_facts_of_gradients():
    for fact in ("linear", "sparse_gradient", "result_lod"):
        assert [s.type for s in stating(fact) if not s.forward] == []
    for schema in having(result_lod="of_gradient"):
        assert "Out@GRAD" in schema.inputs
        assert "X@GRAD" in schema.outputs


def test_rows_in_the_order_of_a_rank_table_come_with_one():
    assert [s.type for s in having(row_order="ranked") if "RankTable" not in s.inputs] == []


def test_ops_that_draw_numbers_have_kernels_and_seeds():
    drawing = {s.type for s in stating("draws")}
    assert [name for name in sorted(drawing) if kernel_of(name) is None] == []
    seeds = ("seed", "startup_seed", "use_random")
    seeded = {s.type for s in SCHEMAS.values() if not s.forward and any(name in s.attrs for name in seeds)}
    assert drawing == seeded - {"cudnn_lstm"}  # it has no kernel


def test_parts_are_made_by_the_attribute_shape():
    assert [s.type for s in stating("part_by_shape") if "shape" not in s.attrs] == []


def test_element_types_follow_a_slot_or_the_attribute_dtype():
    by_attribute = {s.type for s in stating("typed_by") if s.facts.typed_by not in s.inputs}
    assert by_attribute == {"fill_constant", "uniform_random", "gaussian_random"}
    assert typed_slots("fill_constant") == typed_slots("sign") == typed_slots("no_such_op") == ("", "")
    assert typed_slots("tanh") == ("X", "Out")
    assert typed_slots("conv2d") == ("Input", "Output")
    assert typed_slots("batch_norm") == ("X", "Y")


def test_lists_may_be_empty_where_there_are_some():
    for schema in having(lists_may_be_empty=True):
        assert any(slot.duplicable for slot in (*schema.inputs.values(), *schema.outputs.values()))


def test_numbers_that_are_moved_come_from_somewhere():
    for kind in ("moved", "in_order", "combined"):
        assert [s.type for s in having(numbers=kind) if not s.inputs or not s.outputs] == []
