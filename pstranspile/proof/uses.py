"""What a program's ops imply for the dims, rows and sequences of its inputs: which must agree, and with what number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import count
from math import isqrt
from typing import TypeAlias

from pstranspile.ir.attributes import BlockRef, Strings
from pstranspile.ir.model import Op, Program, TensorType, Var
from pstranspile.ir.roles import OpRole
from pstranspile.ir.types import VarKind
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.shapes import ShapeError, infer_types
from pstranspile.proof.dims import Dims, Equations, Known, Lod, Term, constant
from pstranspile.proof.values import SAME_NUMBERS
from pstranspile.runtime.kernels.programs.io import FEEDING

_OWN_ROWS = frozenset(
    {
        *("where_index", "masked_select", "split_lod_tensor", "merge_lod_tensor", "unique", "unique_with_counts"),
        *("beam_search", "beam_search_decode", "filter_by_instag", "sequence_erase", "ctc_align", "sequence_slice"),
        *("select_output", "edit_distance", "chunk_eval", "precision_recall", "assign_value"),
        *("lod_tensor_to_array", "lod_array_length", "read_from_array", "write_to_array", "lod_rank_table", "while"),
        *("max_sequence_len", "conditional_block", "pad_constant_like", "roi_align", "roi_pool", "psroi_pool"),
        *("generate_proposals", "prior_box", "density_prior_box", "anchor_generator", "multiclass_nms", "box_coder"),
        *("bipartite_match", "target_assign", "mine_hard_examples", "iou_similarity", "polygon_box_transform"),
        *("multiclass_nms2", "locality_aware_nms", "matrix_nms", "retinanet_detection_output", "yolov3_loss"),
        *("prroi_pool", "deformable_psroi_pooling", "detection_map", "generate_mask_labels"),
        *("rpn_target_assign", "retinanet_target_assign", "generate_proposal_labels", "box_decoder_and_assign"),
        *("yolo_box", "box_clip", "collect_fpn_proposals", "distribute_fpn_proposals", "range", "linspace", "eye"),
        *("uniform_random", "gaussian_random", "scatter", "scatter_nd", "scatter_nd_add", "tdm_child"),
        *("shrink_rnn_memory", "match_matrix_tensor", "var_conv_2d", "sequence_topk_avg_pooling", "sequence_scatter"),
        *("roi_perspective_transform", "pyramid_hash", "fake_quantize_range_abs_max"),
    }
)
"""Op types whose outputs have other rows than their inputs, or whose inputs need not agree."""


Made: TypeAlias = "Mapping[str, Known] | None"
"""Facts about the outputs of an op; for other outputs, shape rules and declarations suffice."""

Rule: TypeAlias = "Callable[[Uses, Op], Made]"

ONE = constant(1)


def out_of(op: Op, known: Known, slot: str = "Out") -> dict[str, Known]:
    """What is known of an output, by name."""
    name = op.output(slot)
    return {} if name is None else {name: known}


def int_of(op: Op, name: str, default: int = 0) -> int:
    """An attribute that is an integer."""
    value = op.attrs.get(name)
    return int(value) if isinstance(value, int) else default


class Uses:
    """One pass over the forward ops of a program. `inputs` are the variables that are fed; `rules` say by op type what
    an op implies.
    """

    def __init__(self, program: Program, inputs: Iterable[Var], rules: Mapping[str, Rule]):
        self.program = program
        self.rules_of = rules
        self.equations = Equations()
        self.known: dict[str, Known] = {}
        self.inputs: dict[str, Known] = {}
        self.below: dict[str, list[tuple[str, Term]]] = {}
        """Variable -> what its integers index: the op type, and the dim that they stay below."""
        self.lengths: dict[str, list[tuple[Term, bool]]] = {}
        """Variable -> the dim that its integers, as lengths, do not exceed, and whether one must reach it."""
        self.least: list[tuple[Term, int]] = []
        """Dims, and what they must have at least."""
        self.shorter: dict[tuple[Term, int], Term] = {}
        """Dims without so many of their ends."""
        self._primes: dict[Term, int] = {}
        self.lods_by_length: dict[str, Lod] = {}
        self.padded: dict[int, tuple[Lod, Term]] = {}
        """By key, a LoD whose sequences are padded, and the dim that its longest one fills."""
        self.roots: dict[str, str] = {}
        """Variable -> the variable that has the same numbers, as a cast or a reshape gives them."""
        for var in inputs:
            self._input(var)
        self.run_block(0)
        whole: dict[tuple[Term, int], Term] = {}
        for (term, cut), short in self.shorter.items():  # what is as long when shortened is as long
            self.equations.equate(whole.setdefault((self.equations.resolved(short), cut), term), term)

    def fresh(self) -> Term:
        """A dim of which nothing is known."""
        return self.equations.fresh()

    def dims(self, shape: Iterable[int]) -> Dims:
        """Declared dims: numbers, and something new for each that is open."""
        return tuple(constant(dim) if dim > 0 else self.fresh() for dim in shape)

    def longest(self, lod: Lod) -> Term:
        """How long the longest sequence is."""
        return self.padded.setdefault(self.equations.key(lod), (lod, self.fresh()))[1]

    def shortened(self, dim: Term, cut: int) -> Term:
        """A dim less `cut`."""
        return self.shorter.setdefault((self.equations.resolved(dim), cut), self.fresh())

    def root(self, name: str) -> str:
        """The first variable with the same numbers."""
        while name in self.roots:
            name = self.roots[name]
        return name

    def _input(self, var: Var) -> None:
        if var.kind is not VarKind.LOD_TENSOR or var.tensor is None:
            return
        dims = self.dims(var.shape)
        lod = self.equations.fresh_lod(rows=dims[0]) if var.tensor.lod_level == 1 and dims else None
        self.inputs[var.name] = self.known[var.name] = Known(dims, lod)

    def run_block(self, index: int) -> None:
        """Goes through the ops of a block."""
        for op in self.program.blocks[index].ops:
            if (op.role is not None and op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE)) or op.type in FEEDING:
                continue
            if op.type in self.rules_of:
                result = self._ruled(op)
            else:
                result = {}
                if op.type not in _OWN_ROWS:
                    self.rows(op)
            if op.type not in _OWN_ROWS:
                result = {**self._inferred(op, index), **result}
            for name in dict.fromkeys(op.output_names):
                made = result.get(name) or self._declared(name, index)
                if made is not None:
                    self.known[name] = made

    def _ruled(self, op: Op) -> dict[str, Known]:
        """The facts that the rule of an op gives about its outputs."""
        try:
            return dict(self.rules_of[op.type](self, op) or {})
        except (IndexError, ZeroDivisionError):  # an attribute names a missing dim; the run will report it
            return {}

    # what rules use

    def of(self, name: str | None) -> Known | None:
        """Facts about a variable; parameters and results of constants have their declared dims."""
        if not name:
            return None
        known = self.known.get(name)
        var = self.program.find_var(name) if known is None else None
        if var is not None and var.tensor is not None and var.shape and min(var.shape) > 0:
            return Known(self.dims(var.shape))
        return known

    def same(self, a: Dims, b: Dims) -> None:
        """Two lists of dims agree, as far as both go."""
        for one, other in zip(a, b, strict=False):
            self.equations.equate(one, other)

    def _given(self, op: Op) -> Iterator[Known]:
        """What is known of the inputs of an op that are not kept from step to step."""
        for name in op.input_names:
            var, known = self.program.find_var(name), self.known.get(name)
            if known is not None and known.dims and not (var is not None and var.persistable):
                yield known

    def rows(self, op: Op) -> None:
        """An op works row by row: all inputs with an open number of rows have the same."""
        first: Known | None = None
        for known in self._given(op):
            if first is not None and ONE not in (known.dims[0], first.dims[0]):
                self.equations.equate(first.dims[0], known.dims[0])
            first = first or known

    def _inferred(self, op: Op, block: int) -> dict[str, Known]:
        """Facts from the shape rule of an op about its outputs, tried with a prime number for each open dim."""
        given = list(self._given(op))
        like = next((known for known in given if known.lod), given[0] if given else None)
        terms = {self.equations.resolved(dim) for known in given for dim in known.dims}
        primes = {self._prime(term): term for term in terms if term.powers}

        def type_of(name: str) -> TensorType | None:
            var, known = self.program.find_var(name, block), self.known.get(name)
            if var is None or var.tensor is None or known is None:
                return var.tensor if var is not None else None
            dims = (self.equations.resolved(dim) for dim in known.dims)
            return var.tensor._replace(shape=tuple(self._prime(d) if d.number is None else d.number for d in dims))

        try:
            types = infer_types(op, type_of)
        except ShapeError:
            return {}
        result: dict[str, Known] = {}
        for slot, names in op.outputs.items():
            for name, made in zip(names, types.get(slot, ()), strict=False):
                if made is None or not made.shape:
                    continue
                dims = tuple(self._named(number, primes) for number in made.shape)
                lod = like.lod if like is not None and dims[0] == self.equations.resolved(like.dims[0]) else None
                result[name] = Known(dims, lod, like.numbers if like is not None and op.type in SAME_NUMBERS else ())
                if op.type in SAME_NUMBERS and len(names) == 1 and name != op.input("X"):
                    self.roots[name] = op.input("X") or name
        return result

    def _prime(self, term: Term) -> int:
        """A large prime number that stands for a term."""
        if term not in self._primes:
            last = next(reversed(self._primes.values()), 1_000_003)
            self._primes[term] = next(n for n in count(last + 2, 2) if all(n % d for d in range(3, isqrt(n) + 1, 2)))
        return self._primes[term]

    def _named(self, number: int, primes: Mapping[int, Term]) -> Term:
        """The term that a number stands for; a new one where that is not known."""
        result = constant(1)
        for prime, term in primes.items():
            while number > 0 and number % prime == 0:
                result, number = result.times(term), number // prime
        return result.times(constant(number)) if 0 < number < 1_000_000 else self.fresh()

    def _declared(self, name: str, block: int) -> Known | None:
        """Dims as they are declared."""
        var = self.program.find_var(name, block)
        return None if var is None or var.tensor is None or var.persistable else Known(self.dims(var.shape))

    def lod_of(self, name: str | None) -> Lod | None:
        """The LoD of a variable; if none is known of it, a new one for its rows, which is kept."""
        known = self.of(name)
        if known is None or not known.dims or name is None:
            return None
        if known.lod is None:
            known = known._replace(lod=self.equations.fresh_lod(rows=known.dims[0]))
            self.known[name] = known
        return known.lod

    def lod_of_lengths(self, name: str) -> Lod:
        """The LoD whose lengths a variable holds."""
        root = self.root(name)
        if root not in self.lods_by_length:
            known = self.of(name)
            sequences = known.dims[0] if known is not None and known.dims else self.fresh()
            self.lods_by_length[root] = self.equations.fresh_lod(sequences)
        return self.lods_by_length[root]

    def index(self, name: str | None, op: Op, limit: Term) -> None:
        """The integers of a variable stay below a dim."""
        if name:
            self.below.setdefault(self.root(name), []).append((op.type, limit))

    def block_of(self, op: Op) -> int | None:
        """The block that an op runs."""
        result = next((int(value) for value in op.attrs.values() if type(value) is BlockRef), 0)
        return result if 0 < result < len(self.program.blocks) else None

    def strings(self, op: Op, name: str) -> tuple[str, ...]:
        """An attribute that lists names."""
        value = op.attrs.get(name)
        return tuple(value) if isinstance(value, Strings) else ()

    def ints(self, op: Op, name: str) -> tuple[int, ...]:
        """An attribute that lists integers."""
        return tuple(int(value) for value in ints_attr(op, name))

    def product(self, dims: Iterable[Term]) -> Term:
        """The product of dims."""
        result = Term(Fraction(1))
        for dim in dims:
            result = result.times(dim)
        return self.equations.resolved(result)
