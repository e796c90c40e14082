"""The lookup of rows in a table that has a row for every id, which 2.x added to `contrib.layers`."""

from __future__ import annotations

from typing import Any

from pstranspile.fluid.layer_helper import LayerHelper
from pstranspile.fluid.layers.adapt import check_variable
from pstranspile.fluid.param_attr import attr_of
from pstranspile.fluid.running.communicating import warn_unused
from pstranspile.fluid.running.large import EntryAttr, make_large
from pstranspile.ir.table_rules import Rules


def sparse_embedding(
    input: Any,
    size: Any,
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Any = None,
    param_attr: Any = None,
    dtype: str = "float32",
    table_class: str = "CommonSparseTable",
    slot: int | None = None,
) -> Any:
    """The rows of a table that has a row for every id of 64 bits, whatever the height in `size`.

    Servers hold it, or the process itself. A row exists once it is trained, by the rule of an `entry`:
    `CountFilterEntry`, `ProbabilityEntry` or `ShowClickEntry`. Raises ValueError for another one.
    """
    if not isinstance(entry, EntryAttr | None):
        kinds = "a CountFilterEntry, a ProbabilityEntry or a ShowClickEntry"
        raise ValueError(f"entry is {kinds}, not a {type(entry).__name__}")
    if slot:
        warn_unused("sparse_embedding(slot=...)", slot, "rows have no slots")
    if table_class not in ("CommonSparseTable", "MemorySparseTable"):
        warn_unused(
            "sparse_embedding(table_class=...)", table_class, "rows lie in memory, or in a folder that is named"
        )
    check_variable("sparse_embedding", "input", input, ("int64",))
    helper = LayerHelper("sparse_embedding")
    attr: Any = attr_of(param_attr)
    block = helper.main_program.global_block()
    name: Any = getattr(attr, "name", None)
    dims = block.var(name).shape if name and block.has_var(name) else size  # another lookup may have made the table
    table = helper.create_parameter(attr, list(dims), dtype)
    make_large(table, Rules() if entry is None else entry.rules)
    padding = -1 if padding_idx is None else padding_idx if padding_idx >= 0 else size[0] + padding_idx
    made = helper.create_variable_for_type_inference(dtype)
    attrs = {"is_sparse": True, "is_distributed": False, "remote_prefetch": True, "padding_idx": padding}
    kind = "lookup_table" if input.shape[-1] == 1 else "lookup_table_v2"
    helper.append_op(kind, inputs={"Ids": input, "W": table}, outputs={"Out": made}, attrs=attrs)
    return made
