"""What op types that work on sequences imply for rows and their sequences (see `uses`)."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.ir.model import Op
from pstranspile.proof.dims import Known, constant
from pstranspile.proof.uses import ONE, Made, Rule, Uses, int_of, out_of


def _sequence_pool(uses: Uses, op: Op) -> Made:
    x, lod = uses.of(op.input("X")), uses.lod_of(op.input("X"))
    if x is None or lod is None:
        return None
    return out_of(op, x._replace(dims=(lod.sequences, *x.dims[1:]), lod=None))


def _sequence_expand(uses: Uses, op: Op) -> Made:
    x, y = uses.of(op.input("X")), uses.lod_of(op.input("Y"))
    if x is None or y is None:
        return None
    if x.lod is not None and op.type == "sequence_expand":
        uses.equations.equate(x.lod.sequences, y.sequences)
        return out_of(op, x._replace(dims=(uses.fresh(), *x.dims[1:]), lod=None))
    uses.equations.equate(x.dims[0], y.sequences)
    return out_of(op, x._replace(dims=(y.rows, *x.dims[1:]), lod=y))


def _sequence_concat(uses: Uses, op: Op) -> Made:
    names = op.inputs.get("X", ())
    lods = [lod for name in names if (lod := uses.lod_of(name)) is not None]
    x = uses.of(op.input("X"))
    if x is None or not lods:
        return None
    for other in lods[1:]:
        uses.equations.equate(lods[0].sequences, other.sequences)
    keys = "concat", *(uses.equations.key(lod) for lod in lods)
    made = uses.lods_by_length.setdefault(repr(keys), uses.equations.fresh_lod(lods[0].sequences))
    return out_of(op, x._replace(dims=(made.rows, *x.dims[1:]), lod=made))


def _sequence_reshape(uses: Uses, op: Op) -> Made:
    x, lod, width = uses.of(op.input("X")), uses.lod_of(op.input("X")), int_of(op, "new_dim", 1)
    if x is None or lod is None:
        return None
    rows = uses.product(x.dims).times(constant(width), -1)
    return out_of(op, x._replace(dims=(rows, constant(width)), lod=uses.equations.fresh_lod(lod.sequences, rows)))


def _sequence_pad(uses: Uses, op: Op) -> Made:
    x, lod = uses.of(op.input("X")), uses.lod_of(op.input("X"))
    if x is None or lod is None:
        return None
    longest = int_of(op, "padded_length", -1)
    steps = constant(longest) if longest > 0 else uses.longest(lod)
    result = out_of(op, x._replace(dims=(lod.sequences, steps, *x.dims[1:]), lod=None))
    if name := op.output("Length"):
        result[name] = x._replace(dims=(lod.sequences,), lod=None)
        uses.lods_by_length[name] = lod
    return result


def _sequence_unpad(uses: Uses, op: Op) -> Made:
    x, length = uses.of(op.input("X")), op.input("Length")
    if x is None or length is None:
        return None
    lod = uses.lod_of_lengths(length)
    uses.equations.equate(x.dims[0], lod.sequences)
    uses.lengths.setdefault(uses.root(length), []).append((x.dims[1], False))
    return out_of(op, x._replace(dims=(lod.rows, *(x.dims[2:] or (ONE,))), lod=lod))


def _sequence_mask(uses: Uses, op: Op) -> Made:
    x, most = uses.of(op.input("X")), uses.of(op.input("MaxLenTensor"))
    if x is None:
        return None
    fixed = int_of(op, "maxlen", -1)
    held = most.numbers[0] if most is not None and most.numbers else (None, 1)
    steps = held[0] if held[0] is not None and not held[1] else constant(fixed) if fixed > 0 else uses.fresh()
    reached = most is None and fixed <= 0
    uses.lengths.setdefault(uses.root(op.input("X") or ""), []).append((steps, reached))
    return out_of(op, x._replace(dims=(*x.dims, steps)), "Y")


def _by_rank_table(uses: Uses, op: Op) -> Made:
    """What comes back from the steps of a loop has the rows and sequences of what its rank table was made of."""
    table = uses.known.get(op.input("RankTable") or "")
    name = op.output("Out") or ""
    var = uses.program.find_var(name)
    if table is None or table.lod is None or var is None or not var.shape:
        return None
    return out_of(op, table._replace(dims=(table.lod.rows, *uses.dims(var.shape[1:]))))


def _rank_table(uses: Uses, op: Op) -> Made:
    x = uses.of(op.input("X"))
    uses.lod_of(op.input("X"))
    return out_of(op, x) if x is not None else None


def _to_array(uses: Uses, op: Op) -> Made:
    table = uses.known.get(op.input("RankTable") or "")
    if table is not None:
        uses.equations.equate_lods(uses.lod_of(op.input("X")), table.lod)
    return None


def _reordered(uses: Uses, op: Op) -> Made:
    x, table = uses.of(op.input("X")), uses.known.get(op.input("RankTable") or "")
    if x is not None and table is not None and table.lod is not None:
        uses.equations.equate(x.lod.sequences if x.lod else x.dims[0], table.lod.sequences)
    return None if x is None else out_of(op, x)


def _recurrent(uses: Uses, op: Op) -> Made:
    block = uses.block_of(op)
    if block is None:
        return None
    steps = None
    for name in op.inputs.get("inputs", ()):
        known = uses.of(name)
        if known is not None and known.dims:
            steps = steps or known.dims[0]
            uses.equations.equate(steps, known.dims[0])
            uses.known[name] = known._replace(dims=known.dims[1:], lod=None)
    states = dict(zip(uses.strings(op, "ex_states"), op.inputs.get("initial_states", ()), strict=False))
    for name, start in states.items():
        if (known := uses.of(start)) is not None:
            uses.known[name] = known
    outside = {name: known for name in op.inputs.get("inputs", ()) if (known := uses.of(name)) is not None}
    uses.run_block(block)
    for name, known in outside.items():
        uses.known[name] = known._replace(dims=(steps or uses.fresh(), *known.dims))
    result: dict[str, Known] = {}
    for name in op.outputs.get("outputs", ()):
        if (known := uses.of(name)) is not None:
            result[name] = known._replace(dims=(steps or uses.fresh(), *known.dims))
    return result


def _aligned(first: str, second: str) -> Rule:
    """Two ragged inputs have as many sequences."""

    def rule(uses: Uses, op: Op) -> Made:
        a, b = uses.lod_of(op.input(first)), uses.lod_of(op.input(second))
        if a is not None and b is not None:
            uses.equations.equate(a.sequences, b.sequences)
        return None

    return rule


def _alike_sequences(first: str, second: str) -> Rule:
    """Two ragged inputs have sequences of the same lengths."""

    def rule(uses: Uses, op: Op) -> Made:
        uses.equations.equate_lods(uses.lod_of(op.input(first)), uses.lod_of(op.input(second)))
        return None

    return rule


def _first_states(uses: Uses, op: Op) -> Made:
    """The first states of a recurrence over sequences: one for each."""
    lod = uses.lod_of(op.input("Input"))
    for slot in ("H0", "C0"):
        start = uses.of(op.input(slot))
        if start is not None and lod is not None:
            uses.equations.equate(start.dims[0], lod.sequences)
    return None


def _images_to_sequences(uses: Uses, op: Op) -> Made:
    x, var = uses.of(op.input("X")), uses.program.find_var(op.output("Out") or "")
    if x is None or var is None:
        return None
    lod = uses.equations.fresh_lod(x.dims[0])
    return out_of(op, x._replace(dims=(lod.rows, *uses.dims(var.shape[1:])), lod=lod))


SEQUENCE_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("sequence_expand", "sequence_expand_as"), _sequence_expand),
    **dict.fromkeys(("gru", "lstm", "lstmp"), _first_states),
    "sequence_pool": _sequence_pool,
    "sequence_concat": _sequence_concat,
    "sequence_reshape": _sequence_reshape,
    "sequence_pad": _sequence_pad,
    "sequence_unpad": _sequence_unpad,
    "sequence_mask": _sequence_mask,
    "array_to_lod_tensor": _by_rank_table,
    "lod_rank_table": _rank_table,
    "lod_tensor_to_array": _to_array,
    "reorder_lod_tensor_by_rank": _reordered,
    "recurrent": _recurrent,
    "im2sequence": _images_to_sequences,
    "warpctc": _aligned("Logits", "Label"),
    "edit_distance": _aligned("Hyps", "Refs"),
    "linear_chain_crf": _alike_sequences("Emission", "Label"),
    "crf_decoding": _alike_sequences("Emission", "Label"),
}
"""Op type -> its rule."""
