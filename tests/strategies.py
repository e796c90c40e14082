"""Hypothesis strategies for whole modules that use every construct, and comparison to the last bit."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pstranspile.ir.attributes import (
    BlockRef,
    BlockRefs,
    Bools,
    Double,
    Floats,
    Ints,
    Long,
    Longs,
    Strings,
    float32,
)
from pstranspile.ir.model import (
    Block,
    DistributedVar,
    Distribution,
    FrozenMap,
    Module,
    Op,
    ParameterInfo,
    Program,
    TensorType,
    Var,
)
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import schema_of
from pstranspile.ops.schema import GENERIC_ATTRS

GENERIC = {name: spec.default for name, spec in GENERIC_ATTRS.items()}
SCHEMA_TYPES = ("mul", "scale", "sgd", "while", "fill_constant", "concat", "sum", "dropout", "conv2d", "adam")

ODD = '\udc80\udcff\ud800\n\r\t"\\%{}#\x00\u2028\xa0é漢😀 '
FIXED = ["", "}", "{", "# no comment", "a b", "fc_0.w_0@GRAD@RENAME@block0@0", "%x", "-", "1", "\\", "x\\"]


def joined(text: str) -> str:
    """The text with pairs of surrogates as the one character that they stand for; JSON knows no such pairs."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


characters = st.one_of(st.sampled_from(ODD), st.characters())
texts = st.one_of(
    st.text(alphabet="abcXYZ_0189.@/", max_size=8),
    st.lists(characters, max_size=6).map(lambda found: joined("".join(found))),
    st.sampled_from(FIXED),
)
plain_names = st.text(alphabet="abcwxyz_0123.@/", min_size=1, max_size=8)
names = st.one_of(plain_names, plain_names, texts)
words = st.one_of(st.sampled_from(["X", "Y", "Out", "Out@GRAD", "sub_block", "a", "b", "n"]), texts)

int32 = st.one_of(st.integers(-3, 9), st.integers(-(2**31), 2**31 - 1))
int64 = st.one_of(st.integers(-3, 9), st.integers(-(2**63), 2**63 - 1))
float32s = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1.0, 0.1, 1e-8, float("inf"), float("-inf"), float("nan"), 3.4028234663852886e38]),
).map(float32)


def block_refs(blocks: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, blocks), int32)


def attribute_values(blocks: int = 3) -> st.SearchStrategy[Any]:
    """Values of all thirteen kinds, empty lists among them."""
    return st.one_of(
        st.booleans(),
        int32,
        int64.map(Long),
        st.floats().map(Double),
        float32s,
        texts,
        block_refs(blocks).map(BlockRef),
        st.lists(int32, max_size=3).map(Ints),
        st.lists(int64, max_size=3).map(Longs),
        st.lists(float32s, max_size=3).map(Floats),
        st.lists(st.booleans(), max_size=3).map(Bools),
        st.lists(texts, max_size=3).map(Strings),
        st.lists(block_refs(blocks), max_size=3).map(BlockRefs),
    )


slots = st.dictionaries(words, st.lists(names, max_size=3).map(tuple), max_size=3)


@st.composite
def ops(draw: st.DrawFn, blocks: int = 3) -> Op:
    """Ops with and without a schema, defaults filled in, changed or taken out."""
    op_type = draw(st.one_of(st.sampled_from(SCHEMA_TYPES), words))
    schema = schema_of(op_type)
    inputs = draw(slots)
    if schema is not None:
        inputs = {**{slot: () for slot in schema.empty_inputs if draw(st.booleans())}, **inputs}
        for slot in schema.inputs:
            if draw(st.booleans()):
                inputs[slot] = tuple(draw(st.lists(names, max_size=2)))
    defaults = schema.defaults if schema is not None else GENERIC
    attrs = {name: value for name, value in defaults.items() if draw(st.integers(0, 9))}
    known = list(schema.attrs) if schema is not None else ["op_namescope", "op_device"]
    for name in draw(st.lists(st.one_of(st.sampled_from(known), words) if known else words, max_size=3)):
        if name not in ("op_role", "op_role_var"):
            attrs[name] = draw(attribute_values(blocks))
    role = draw(
        st.one_of(
            st.none(),
            st.sampled_from([0, 0, 1, 2, 4, 8, 16, 18, 256, 257, 4096]).map(OpRole),
            st.integers(0, 2**31 - 1).map(OpRole),
        )
    )
    role_vars = draw(st.one_of(st.none(), st.just(()), st.lists(names, max_size=3).map(tuple)))
    target = draw(st.integers(0, 5)) == 0
    return Op(op_type, FrozenMap(inputs), FrozenMap(draw(slots)), FrozenMap(attrs), role, role_vars, target)


tensors = st.builds(
    TensorType, st.sampled_from(DType), st.lists(int64, max_size=3).map(tuple), st.one_of(st.just(0), int32)
)
parameters = st.builds(
    ParameterInfo, st.booleans(), st.one_of(st.just(1.0), st.floats()), st.booleans(), st.one_of(st.none(), texts)
)
DESCRIBED = {VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS, VarKind.LOD_TENSOR_ARRAY}
FIELDS = ["persistable", "need_check_feed", "lod_level"]


@st.composite
def variables(draw: st.DrawFn, name: str) -> Var:
    kind = draw(st.one_of(st.just(VarKind.LOD_TENSOR), st.sampled_from(VarKind)))
    parameter = draw(st.one_of(st.none(), parameters))
    readers = draw(st.lists(tensors, max_size=2).map(tuple)) if kind is VarKind.READER else ()
    elements = st.lists(st.one_of(st.sampled_from(VarKind), st.sampled_from(DType)), max_size=3).map(tuple)
    return Var(
        name,
        kind,
        draw(st.one_of(st.none(), tensors)) if kind in DESCRIBED else None,
        draw(st.booleans()),
        draw(st.booleans()),
        parameter,
        readers,
        draw(elements) if kind is VarKind.TUPLE else (),
        written_defaults=draw(
            st.one_of(st.none(), st.none(), st.lists(st.sampled_from(FIELDS), unique=True).map(tuple))
        ),
    )


@st.composite
def blocks(draw: st.DrawFn, index: int, count: int) -> Block:
    declared = draw(st.lists(names, max_size=4, unique=True))
    return Block(
        FrozenMap({name: draw(variables(name)) for name in declared}),
        tuple(draw(st.lists(ops(count), max_size=4))),
        draw(st.one_of(st.just(index - 1), st.integers(-1, count), int32)),
        draw(st.one_of(st.just(-1), int32)),
    )


dims = st.lists(int64, max_size=3).map(tuple)
distributed_vars = st.builds(
    DistributedVar, names, dims, names, dims, st.booleans(), int64, int64, texts, st.one_of(st.just("Param"), words)
)
endpoints = st.lists(texts, max_size=2).map(tuple)
distributions = st.builds(
    Distribution,
    st.booleans(),
    st.booleans(),
    endpoints,
    st.one_of(st.none(), texts),
    st.one_of(st.none(), texts),
    endpoints,
    st.one_of(st.just(1), int64),
    st.booleans(),
    int64,
    st.lists(distributed_vars, max_size=3).map(tuple),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    count = draw(st.integers(0, 4))
    return Program(
        tuple([draw(blocks(index, count)) for index in range(count)]),
        draw(st.one_of(st.just(0), int64)),
        draw(st.one_of(st.none(), st.just(0), int64)),
        draw(st.one_of(st.none(), distributions)),
    )


modules = st.dictionaries(st.one_of(st.sampled_from(["main", "startup"]), names), programs(), max_size=3).map(
    lambda found: Module(FrozenMap(found))
)
"""Modules that use every construct a ProgramDesc has, well formed or not."""


def exactly(value: Any, *, places: bool = False) -> Any:
    """A value as plain data that compares to the last bit: kinds, -0.0, NaN, and with `places` the origins."""
    if isinstance(value, Module):
        return {name: exactly(program, places=places) for name, program in value.programs.items()}
    if isinstance(value, dict):
        return {key: (type(key).__name__, exactly(item, places=places)) for key, item in value.items()}
    if isinstance(value, Op):
        return [exactly(part, places=places) for part in (value if places else value[:-1])]
    if isinstance(value, Block):
        return [exactly(part, places=places) for part in (value if places else value[:-1])]
    if isinstance(value, Var):
        place = value.location if places else None
        return [exactly(part, places=places) for part in value._replace(location=place)]
    if isinstance(value, tuple):
        return (type(value).__name__, *[exactly(part, places=places) for part in value])
    return (type(value).__name__, repr(value))
