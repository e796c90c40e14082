"""The facts that the declaration of an op type states beside its slots and attributes.

They are given to `declare(...)` by name, and read with `pstranspile.ops.facts_of(op_type)`:

    declare("where_index", "Condition -> Out", rows="own", row_order="by_values", doc="...")

A fact that is not stated has its default, which is the ordinary case: an op that works on one machine and computes each
row of its outputs from the same row of its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from pstranspile.ir.model import EMPTY, FrozenMap

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

Communication: TypeAlias = Literal["", "request", "command", "server", "collective", "set-up", "stream"]
"""The machines that an op communicates with.

"request": with parameter servers, as a part of a training step. "command": with parameter servers, apart from training.
"server": the op is a parameter server. "collective": with all trainers of a ring. "set-up": with all trainers, to set
up a ring. "stream": with nobody; it waits for a stream of its own device.
"""

AllReduce: TypeAlias = Literal["", "sum", "max", "min", "prod"]
"""The operation by which an op combines the values of all trainers of a ring into one value for all of them; "": none.
"""

RowCount: TypeAlias = Literal["kept", "own"]
"""Whether the outputs of an op have as many rows as its inputs.

"kept": as many, or the number that its shape rule gives. "own": another number, or its inputs may differ in rows.
"""

RowOrder: TypeAlias = Literal["kept", "handed_on", "ranked", "by_values"]
"""The places of the batch's rows in the outputs of an op.

"kept": at the same places as in its inputs. "handed_on": the same, although the declared dims of arrays don't show it.
"ranked": in the order of a rank table, the longest sequence first. "by_values": at places that depend on the values of
its inputs.
"""

Numbers: TypeAlias = Literal["computed", "moved", "in_order", "combined"]
"""How the numbers in the outputs of an op follow from those in its inputs.

"moved": they are the same numbers, at other places. "in_order": the same numbers in the same order, whatever the dims.
"combined": sums, products or means of the inputs' numbers, so that they grow with these. "computed": in any other way.
"""

Memory: TypeAlias = Literal["", "new", "over"]
"""Where an op writes its first output.

"": it may be a view of an input. "new": in memory of its own, over which a later op may write. "over": in that of X
where nothing else reads X, else in new memory.
"""

LodOfResult: TypeAlias = Literal["inferred", "none", "of_gradient"]
"""The LoD level that Fluid declares for the outputs of a gradient op.

"inferred": the one that its shape rule gives. "none": 0, whatever the inputs have. "of_gradient": that of Out@GRAD.
"""


class Below(NamedTuple):
    """Whole numbers from 0 on, below the dim `axis` of the input slot `of`, or, if `axis` is None, below the attribute
    `of`.

    An `axis` that is a text is the name of the attribute that holds the index of the dim. With `ends`, a number below 0
    ends a row of numbers.
    """

    of: str
    axis: int | str | None = None
    ends: bool = False


class Within(NamedTuple):
    """Positions in the input slot `of`: along the last dim, the i-th number is below the i-th dim of `of`."""

    of: str


class AmongThose(NamedTuple):
    """Whole numbers from 0 on, each the index of a variable in the slot `of`."""

    of: str


Domain: TypeAlias = "Literal['binary', 'positive', 'zero'] | Below | Within | AmongThose"
"""The numbers that an input may hold: 0 and 1 ("binary"), numbers above 0 ("positive"), only 0 ("zero": the beginning,
which always exists), or whole numbers with a limit.
"""


class OpFacts(NamedTuple):
    """The facts that the declaration of an op type states beside its slots and attributes."""

    communicates: Communication = ""
    """The machines that the op communicates with."""
    sends: str = ""
    """The input slot whose values the op sends to other machines. The other inputs of an op that communicates only
    order it.
    """
    receives: str = ""
    """The output slot whose values the op receives from other machines. The other outputs of such an
    op only order ops.
    """
    all_reduce: AllReduce = ""
    """The operation by which the op combines the values of all trainers for all of them."""
    cuts: bool = False
    """The op cuts a variable into the parts that servers hold, or distributes its rows among them."""
    looks_up: str = ""
    """The input slot of a table of which the op reads a few rows. The rows may be on servers, which `table_names`
    lists.
    """
    rows: RowCount = "kept"
    """Whether the outputs have as many rows as the inputs."""
    row_order: RowOrder = "kept"
    """The places of the batch's rows in the outputs."""
    numbers: Numbers = "computed"
    """How the numbers in the outputs follow from those in the inputs."""
    domains: Mapping[str, Domain] = EMPTY
    """The numbers that input slots may hold, by slot; slots that are not listed may hold any."""
    mean_of_rows: bool = False
    """The op takes the mean over rows, which depends on how many there are."""
    draws: bool = False
    """The op draws random numbers, from its attribute `seed` if it has one."""
    part_by_shape: bool = False
    """The op, in a start-up program, makes a part of its result if its attribute `shape` holds the
    dims of that part.
    """
    reader: bool = False
    """The op makes a reader, or reads from one."""
    lists_may_be_empty: bool = False
    """Slots that take a list may be empty, as they only name variables that are read or written elsewhere."""
    typed_by: str = ""
    """The input slot or attribute whose element type Fluid gives to the first output as it appends the op."""
    constant: bool = False
    """Fluid's layers mark the results of the op as having no gradient."""
    branches: bool = False
    """The op does one thing with a number on one side of another number, and something else on the other side; or it
    makes flags or positions of such comparisons.
    """
    memory: Memory = ""
    """Where the op writes its first output."""
    dims_only: str = ""
    """The input slots, separated by blanks, of which the op reads nothing but the dims."""
    calls: int = 1
    """The calls of functions over whole arrays by which the op does its work."""
    calls_per_step: int = 0
    """The further calls for each step of the longest sequence."""
    linear: bool = False
    """A gradient op that is linear in the gradients that it reads, and otherwise depends only on dims and indices of
    its other inputs.
    """
    sparse_gradient: str = ""
    """The output slot in which a gradient op returns sparse rows if its attribute `is_sparse` is set. It reads the
    table only for its dims.
    """
    updates_given_rows: bool = False
    """By a sparse gradient of a large table, an optimizer changes the rows that the gradient has, and nothing else of
    the parameter and of what it keeps for it. Kernels of this package do so if the op has the attribute `GIVEN_ROWS`.
    """
    merges_repeats: bool = False
    """An optimizer adds up equal rows of a sparse gradient, in their order, before it updates with the sum, so that the
    op that gives the gradient need not.
    """
    opaque: str = ""
    """A sentence about an op that is a program of its own, which another library runs; "" for all others."""
    result_lod: LodOfResult = "inferred"
    """The LoD level that Fluid declares for the outputs of a gradient op."""


PLAIN = OpFacts()
"""The facts of an op type whose declaration states none."""


if TYPE_CHECKING:

    class StatedFacts(TypedDict, total=False):
        """The facts that a declaration may state, by name: those of `OpFacts`."""

        communicates: Communication
        sends: str
        receives: str
        all_reduce: AllReduce
        cuts: bool
        looks_up: str
        rows: RowCount
        row_order: RowOrder
        numbers: Numbers
        domains: Mapping[str, Domain]
        mean_of_rows: bool
        draws: bool
        part_by_shape: bool
        reader: bool
        lists_may_be_empty: bool
        typed_by: str
        constant: bool
        branches: bool
        memory: Memory
        dims_only: str
        calls: int
        calls_per_step: int
        linear: bool
        sparse_gradient: str
        updates_given_rows: bool
        merges_repeats: bool
        opaque: str
        result_lod: LodOfResult


_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "communicates": get_args(Communication),
    "all_reduce": get_args(AllReduce),
    "rows": get_args(RowCount),
    "row_order": get_args(RowOrder),
    "numbers": get_args(Numbers),
    "memory": get_args(Memory),
    "result_lod": get_args(LodOfResult),
}
"""The allowed values of facts that have named values."""


_SLOTS = {
    "sends": "input",
    "looks_up": "input",
    "dims_only": "input",
    "receives": "output",
    "sparse_gradient": "output",
}
"""The facts that name slots, and whether these are inputs or outputs."""


def make_facts(
    inputs: Mapping[str, object],
    outputs: Mapping[str, object],
    attrs: Mapping[str, object],
    **stated: Unpack[StatedFacts],
) -> OpFacts:
    """The facts that are stated of an op with these slots and attributes.

    Raises ValueError for an unknown fact, or one that names a value, slot or attribute which does not exist.
    """
    if not stated:
        return PLAIN
    domains = stated.pop("domains", EMPTY)
    facts = _facts_with(tuple(stated.items()))
    for name, value in stated.items():
        kind = _SLOTS.get(name)
        for slot in str(value).split() if kind else ():
            if slot not in (inputs if kind == "input" else outputs):
                raise ValueError(f"{name} is {slot!r}, which is no {kind} slot of the op")
    if facts.typed_by and facts.typed_by not in inputs and facts.typed_by not in attrs:
        raise ValueError(f"typed_by is {facts.typed_by!r}, which is neither an input slot nor an attribute of the op")
    if domains:
        _require_domains(inputs, outputs, attrs, domains)
        facts = facts._replace(domains=FrozenMap(domains))
    return facts


@cache
def _facts_with(stated: tuple[tuple[str, Any], ...]) -> OpFacts:
    """The facts with these names and values; op types with equal facts share one object. Raises ValueError for an
    unknown fact, or a value that it can't have.
    """
    for name, value in stated:
        if name not in OpFacts._fields:
            raise ValueError(f"there is no fact {name!r}; there are {', '.join(OpFacts._fields)}")
        if name in _CHOICES and value not in _CHOICES[name]:
            choices = ", ".join(repr(choice) for choice in _CHOICES[name])
            raise ValueError(f"{name} is {value!r}, not one of {choices}")
        if type(value) is not type(getattr(PLAIN, name)):
            raise ValueError(f"{name} is {value!r}, not a {type(getattr(PLAIN, name)).__name__}")
    return OpFacts(**dict(stated))


def _require_domains(
    inputs: Mapping[str, object],
    outputs: Mapping[str, object],
    attrs: Mapping[str, object],
    domains: Mapping[str, Domain],
) -> None:
    for slot, domain in domains.items():
        if slot not in inputs:
            raise ValueError(f"domains has {slot!r}, which is no input slot of the op")
        if isinstance(domain, str):
            if domain not in ("binary", "positive", "zero"):
                known = "'binary', 'positive', 'zero', Below(...), Within(...) or AmongThose(...)"
                raise ValueError(f"the domain of {slot} is {domain!r}, not {known}")
        elif isinstance(domain, Below):
            if domain.of not in (attrs if domain.axis is None else inputs):
                kind = "attribute" if domain.axis is None else "input slot"
                raise ValueError(f"the domain of {slot} is below {domain.of!r}, which is no {kind} of the op")
            if isinstance(domain.axis, str) and domain.axis not in attrs:
                raise ValueError(f"the domain of {slot} is along {domain.axis!r}, which is no attribute of the op")
        elif domain.of not in inputs and not (isinstance(domain, AmongThose) and domain.of in outputs):
            raise ValueError(f"the domain of {slot} is of {domain.of!r}, which is no slot of the op")
