"""Programs drawn by hypothesis that use everything a ProgramDesc can hold."""

from hypothesis import strategies as st

from pstranspile.ir.attributes import (
    BlockRef,
    BlockRefs,
    Bools,
    Floats,
    Ints,
    Long,
    Longs,
    Strings,
)
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole, VarKind

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FLOAT = st.floats(width=32)
NAME = st.text(max_size=6) | st.binary(max_size=6).map(lambda b: b.decode("utf-8", "surrogateescape"))
SHORT = {"max_size": 3}

ATTR_VALUE = st.one_of(
    INT32,
    INT64.map(Long),
    FLOAT,
    st.booleans(),
    NAME,
    st.integers(0, 9).map(BlockRef),
    st.lists(INT32, **SHORT).map(Ints),
    st.lists(INT64, **SHORT).map(Longs),
    st.lists(FLOAT, **SHORT).map(Floats),
    st.lists(st.booleans(), **SHORT).map(Bools),
    st.lists(NAME, **SHORT).map(Strings),
    st.lists(st.integers(0, 9), **SHORT).map(BlockRefs),
)
ATTR_NAME = NAME.filter(lambda name: name not in ("op_role", "op_role_var"))
NAMES = st.lists(NAME, **SHORT).map(tuple)
SLOTS = st.dictionaries(NAME, NAMES, **SHORT).map(FrozenMap)
SHAPE = st.lists(INT64, **SHORT).map(tuple)
TENSOR = st.builds(TensorType, st.sampled_from(DType), SHAPE, st.integers(0, 3))
ROWS = st.builds(TensorType, st.sampled_from(DType), SHAPE, st.just(0))
BARE = [
    kind
    for kind in VarKind
    if kind
    not in (
        VarKind.LOD_TENSOR,
        VarKind.LOD_TENSOR_ARRAY,
        VarKind.SELECTED_ROWS,
        VarKind.READER,
        VarKind.TUPLE,
    )
]


@st.composite
def variables(draw) -> Var:
    flags = {"persistable": draw(st.booleans()), "need_check_feed": draw(st.booleans())}
    name = draw(NAME)
    kind = draw(st.sampled_from(VarKind))
    if kind in BARE:
        return Var(name, kind, **flags)
    if kind is VarKind.READER:
        return Var(name, kind, readers=tuple(draw(st.lists(TENSOR, **SHORT))), **flags)
    if kind is VarKind.TUPLE:
        element = st.sampled_from(DType) | st.sampled_from(VarKind)
        return Var(name, kind, elements=tuple(draw(st.lists(element, **SHORT))), **flags)
    tensor = ROWS if kind is VarKind.SELECTED_ROWS else TENSOR
    return Var(name, kind, draw(st.none() | tensor), **flags)


OPS = st.builds(
    Op,
    NAME,
    SLOTS,
    SLOTS,
    st.dictionaries(ATTR_NAME, ATTR_VALUE, **SHORT).map(FrozenMap),
    st.none() | st.integers(0, (1 << 13) - 1).map(OpRole),
    st.none() | NAMES,
    st.booleans(),
    st.none(),
)
BLOCKS = st.builds(
    Block,
    st.lists(variables(), max_size=4).map(lambda found: FrozenMap({var.name: var for var in found})),
    st.lists(OPS, **SHORT).map(tuple),
    INT32,
    INT32,
    st.none(),
)


def programs() -> st.SearchStrategy[Program]:
    """Programs with every kind of variable and attribute; their references need not make sense."""
    return st.builds(Program, st.lists(BLOCKS, min_size=1, max_size=3).map(tuple), st.just(0), st.none() | INT64)
