"""Fluid's mutable programs, over drafts of frozen ones.

Their base class has the attributes by which they know their role in a cluster. A draft over two of Fluid's programs is
live: ops and variables made in the draft are in the programs at once.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.block import Block
from pstranspile.fluid.graph.desc import ALONE, BlockDesc
from pstranspile.fluid.graph.pruning import places_of, prune_to_targets, with_used_variables, without_roles
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.graph.variable import Parameter, Variable
from pstranspile.fluid.running.flags import require_static
from pstranspile.frontends.autodiff.backward import LOSS_GRADIENT
from pstranspile.frontends.layers.draft import FLUID_VERSION, BlockDraft, Draft, Names_, Scopes, Value
from pstranspile.frontends.python_places import in_script
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import MAIN, STARTUP, Distribution, FrozenMap, Module, Op, TensorType
from pstranspile.ir.model import Block as FrozenBlock
from pstranspile.ir.model import Program as FrozenProgram
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ir.user_warnings import warn
from pstranspile.ops.shapes import ShapeError, Types, infer_types

TEST = "test"
"""The value of `PartInCluster.part` for copies for tests."""


class PartInCluster:
    """The base class of programs: the `distribution` that a compile writes into a program, under the names of Fluid's
    attributes.
    """

    def __init__(self) -> None:
        self.distribution: Distribution | None = None
        self.machine: Any = None
        """The machine of a cluster that runs the program, None outside of a cluster."""
        self.part = ""
        """The program of that machine that this is: `main`, `startup`, or `test` for test copies of the
        main program.
        """
        self._overview: Any = None
        self._fleet_opt: Any = None
        self._pipeline_opt: Any = None

    def _distribution_or_default(self) -> Distribution:
        return self.distribution or Distribution()

    def _say(self, **values: Any) -> None:
        self.distribution = self._distribution_or_default()._replace(**values)

    @property
    def _is_distributed(self) -> bool:
        """Whether the program belongs to a cluster with servers."""
        return self._distribution_or_default().is_distributed

    @_is_distributed.setter
    def _is_distributed(self, value: bool) -> None:
        self._say(is_distributed=bool(value))

    @property
    def _is_chief(self) -> bool:
        """Whether the program belongs to trainer 0."""
        return self._distribution_or_default().is_chief

    @_is_chief.setter
    def _is_chief(self, value: bool) -> None:
        self._say(is_chief=bool(value))

    @property
    def _endpoints(self) -> list[str]:
        """The endpoints of the parameter servers."""
        return list(self._distribution_or_default().endpoints)

    @_endpoints.setter
    def _endpoints(self, value: Any) -> None:
        self._say(endpoints=tuple(value))

    @property
    def _ps_endpoint(self) -> str | None:
        """The endpoint of the parameter server that runs the program, or that it loads from; None if there is none."""
        return self._distribution_or_default().ps_endpoint

    @_ps_endpoint.setter
    def _ps_endpoint(self, value: str | None) -> None:
        self._say(ps_endpoint=value)

    @property
    def _trainers_endpoints(self) -> list[str]:
        """The endpoints of the trainers, in a cluster without servers."""
        return list(self._distribution_or_default().trainers_endpoints)

    @_trainers_endpoints.setter
    def _trainers_endpoints(self, value: Any) -> None:
        self._say(trainers_endpoints=tuple(value))

    @property
    def _distributed_lookup_table(self) -> str | None:
        """The name of the table that only the servers have, None if there is none."""
        return self._distribution_or_default().distributed_lookup_table

    @_distributed_lookup_table.setter
    def _distributed_lookup_table(self, value: str | None) -> None:
        self._say(distributed_lookup_table=value)

    @property
    def _parameters_on_pservers(self) -> Any:
        """The overview of variables on servers, None for a program outside of a cluster."""
        if self._overview is None and self.machine is not None:
            from pstranspile.fluid.transpiler.details import overview_of

            compiled = self.machine.compiled
            self._overview = overview_of(compiled.source, compiled.distributed_vars)
        return self._overview

    @_parameters_on_pservers.setter
    def _parameters_on_pservers(self, value: Any) -> None:
        self._overview = value

    def _copy_dist_param_info_from(self, other: Any) -> None:
        """Copies what another program knows of its cluster. Raises TypeError if `other` is no program."""
        if not isinstance(other, PartInCluster):
            raise TypeError(f"it takes a Program, not a value of type {type(other).__name__}")
        self.distribution, self._overview = other.distribution, other._parameters_on_pservers


GLOBAL_SEED = [0]
"""The seed of new programs; 0 for none."""
_READING = ("read", "create_py_reader", "create_double_buffer_reader")


class Program(PartInCluster):
    """A program to which layers add ops. `freeze()` returns it as the value that compilers and runs take."""

    __slots__ = ("_blocks", "_frozen", "drafts")  # left out of `__dict__`, by which scripts compare programs

    def __init__(self) -> None:
        super().__init__()
        self.drafts = [BlockDraft(FrozenBlock())]
        self.stopped: set[str] = set()
        """Variables that get no gradient."""
        self.clips: dict[str, object] = {}
        self.regularizers: dict[str, object] = {}
        self.untyped: dict[str, TensorType] = {}
        """The types, when they were declared, of the variables that a script declared with dims and without an element
        type.
        """
        self.unaveraged: set[str] = set()
        """Parameters that averages of parameters leave out."""
        self.schedules: dict[str, Any] = {}
        """Objects that compute learning rates in the script, by the variable that each run sets to the
        computed rate.
        """
        self.readers: list[Any] = []
        """Readers whose data runs of the program are fed with."""
        self.gradient_calls = 0
        """How often `gradients` has appended to the program; names of gradients contain this number."""
        self.name_counters = unique_name.generator().copy()
        """The counters for unique names when the program was made."""
        self._seed = GLOBAL_SEED[0]
        self.current_block_idx = 0
        self.role = OpRole.FORWARD
        self.role_vars: tuple[str, ...] = ()
        self._version: int | None = FLUID_VERSION
        self._blocks: list[Block] = []
        self._frozen: FrozenProgram | None = None

    @property
    def random_seed(self) -> int:
        """The seed of the program's random numbers; 0 if every run draws other numbers."""
        return self._seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        if not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"a program's random_seed is a whole number, not a {type(seed).__name__}")
        self._seed = seed

    def global_seed(self, seed: int = 0) -> None:
        """Sets the seed of the program, and of all programs made from now on."""
        self.random_seed = seed
        GLOBAL_SEED[0] = seed

    # as a value

    def freeze(self) -> FrozenProgram:
        """The program as a frozen value; the same object as at the last call if nothing has changed since."""
        known = self._frozen
        if (
            known is not None
            and len(known.blocks) == len(self.drafts)
            and (known.random_seed, known.version) == (self._seed, self._version)
            and known.distribution == self.distribution
            and all(draft.gives(block) for draft, block in zip(self.drafts, known.blocks, strict=True))
        ):
            return known
        blocks = tuple(draft.freeze() for draft in self.drafts)
        self._frozen = FrozenProgram(blocks, self._seed, self._version, self.distribution)
        return self._frozen

    def take(self, frozen: FrozenProgram) -> Program:
        """Replaces the program's content by that of a frozen one, and returns the program."""
        self.drafts[:] = [BlockDraft(block) for block in frozen.blocks]
        self.random_seed, self._version = frozen.random_seed, frozen.version
        self.distribution = frozen.distribution
        self.current_block_idx = 0
        del self._blocks[len(self.drafts) :]
        return self

    @staticmethod
    def of(frozen: FrozenProgram) -> Program:
        """A new program with the content of a frozen one."""
        return Program().take(frozen)

    def live(self, startup_program: Program | None = None) -> LiveDraft:
        """The program, with the start-up program (default: the one in use), as the draft that layers of this package
        take.

        Raises DiagnosticError in a script that has turned static graphs off.
        """
        require_static()
        return LiveDraft(self, startup_program or DEFAULTS[1])

    def wrap(self, results: Any) -> Any:
        """The results of a layer as variables of this program; tuples and lists item by item."""
        if isinstance(results, Value):
            block = self.current_block()
            found = block.find_var_recursive(results.name)
            assert found is not None
            return found
        if several(results):
            return [self.wrap(item) for item in results]  # pyright: ignore[reportUnknownVariableType]
        return results

    # blocks

    @property
    def blocks(self) -> list[Block]:
        """All blocks; every call returns the same objects."""
        while len(self._blocks) < len(self.drafts):
            self._blocks.append(Block(self, len(self._blocks)))
        return self._blocks

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self.drafts)

    def block(self, index: int) -> Block:
        """The block with an index."""
        return self.blocks[index]

    def global_block(self) -> Block:
        """Block 0."""
        return self.blocks[0]

    def current_block(self) -> Block:
        """The block that layers add ops to."""
        return self.blocks[self.current_block_idx]

    def _create_block(self, parent_idx: int | None = None) -> Block:
        """Adds a block inside the current one, or inside the one with index `parent_idx`, and makes it the current
        block.
        """
        parent = self.current_block_idx if parent_idx is None else parent_idx
        self.drafts.append(BlockDraft(FrozenBlock(parent=parent)))
        self.current_block_idx = len(self.drafts) - 1
        return self.current_block()

    def _rollback(self) -> None:
        """Makes the block around the current one the current block."""
        self.current_block_idx = self.current_block().parent_idx

    create_block, rollback = _create_block, _rollback

    # queries of scripts

    @property
    def desc(self) -> ProgramDesc:
        """The program under the method names of Fluid's descriptions."""
        return ProgramDesc(self)

    def _sync_with_cpp(self) -> None:
        """Does nothing: the program and its description are one and the same."""

    @property
    def op_role(self) -> OpRole:
        """The role of ops made now."""
        return self.role

    def __repr__(self) -> str:
        return self.to_string(False)

    def to_string(self, throw_on_error: bool, with_details: bool = False) -> str:
        """The program as text, block by block; `with_details` adds the facts about parameters.

        With `throw_on_error`, raises ValueError for a variable that is declared without an element type.
        """
        return "\n".join(block.to_string(throw_on_error, with_details) for block in self.blocks)

    def _to_readable_code(self, skip_op_callstack: bool = True) -> str:
        """The program as text."""
        return self.to_string(True)

    def all_parameters(self) -> list[Parameter]:
        """The parameters of all blocks."""
        return [param for block in self.blocks for param in block.iter_parameters()]

    def list_vars(self) -> Generator[Variable]:
        """The variables of all blocks."""
        for block in self.blocks:
            yield from block.vars.values()

    def serialize_to_string(self) -> bytes:
        """The program as the bytes of a ProgramDesc."""
        from pstranspile.frontends.program_desc import program_to_bytes

        return program_to_bytes(in_script(self.freeze()))

    @staticmethod
    def parse_from_string(binary_str: bytes) -> Program:
        """A program from the bytes of a ProgramDesc. Raises DiagnosticError for other bytes."""
        from pstranspile.frontends.program_desc import program_from_bytes

        return Program.of(program_from_bytes(binary_str, "<bytes>", "main"))

    # copies

    def clone(self, for_test: bool = False) -> Program:
        """A copy; `for_test` leaves out the ops that train, and sets the others to behave as in tests.

        If a machine of a cluster runs the program, it also runs the copy; a copy for tests then sends nothing to
        servers.
        """
        frozen = self.freeze()
        copy = Program.of(for_testing(frozen) if for_test else frozen)
        copy._take_notes(self)
        if self.part == MAIN or not for_test:
            copy.machine, copy.part = self.machine, TEST if for_test else self.part
        return copy

    def _prune(self, targets: Any) -> Program:
        """The ops that compute the targets, as a program of their own. Raises ValueError as `_prune_with_input`."""
        return self._prune_with_input([], targets)

    def _prune_with_input(self, feeded_var_names: Any, targets: Any) -> Program:
        """The ops that compute the targets from the fed variables, as a program of their own.

        Targets are variables, their names, and ops. Raises ValueError for other targets, and for feeds that are not
        names.
        """
        feeds: list[Any] = [*feeded_var_names] if several(feeded_var_names) else [feeded_var_names]
        for name in feeds:
            if not isinstance(name, str):
                raise ValueError(f"feeds are given by name, not by a value of type {type(name).__name__}")
        listed: list[Any] = [*targets] if several(targets) else [targets]
        places = places_of(self.global_block(), listed, feeds)
        copy = Program.of(prune_to_targets(self.freeze(), places, feeds))
        copy._take_notes(self)
        return copy

    def _take_notes(self, other: Program) -> None:
        """Copies what another program knows of its variables beside their declarations."""
        self.stopped |= other.stopped
        self.unaveraged |= other.unaveraged
        self.readers, self.schedules = list(other.readers), dict(other.schedules)
        self.gradient_calls, self.name_counters = other.gradient_calls, other.name_counters
        self.regularizers, self.clips = dict(other.regularizers), dict(other.clips)
        self._mark_fed(_require_program(other))

    def _copy_data_info_from(self, other: Program, pruned_origin_block_id_map: Any = None) -> None:
        """Marks variables as fed if they are so marked in another program.

        Raises ValueError if the other program has another number of blocks, or lacks a variable of this one.
        """
        if pruned_origin_block_id_map is None and len(_require_program(other).blocks) != len(self.blocks):
            raise ValueError(f"the programs have {len(other.blocks)} and {len(self.blocks)} blocks")
        known = {name for draft in _require_program(other).drafts for name in draft.vars}
        missing = sorted({name for draft in self.drafts for name in draft.vars} - known)
        if missing:
            raise ValueError(f"the other program has no variable {missing[0]}")
        self._mark_fed(other)

    def _mark_fed(self, other: Program) -> None:
        """Marks variables as fed if they are so marked in `other`, which may be larger than this program."""
        for block, mine in zip(other.blocks, self.blocks, strict=False):
            for var in block.vars.values():
                if var.is_data and mine.has_var(var.name):
                    mine.var(var.name).is_data = True

    def _copy_param_info_from(self, other: Program) -> None:
        """Declares variables that are parameters in another program as parameters here, with the same facts."""
        for name, var in _require_program(other).drafts[0].vars.items():
            known = self.drafts[0].vars.get(name)
            if var.parameter is not None and known is not None:
                self.drafts[0].vars[name] = known._replace(parameter=var.parameter)

    def _inference_optimize(self, prune_read_op: bool = True) -> Program:
        """A copy whose ops behave as in tests; `prune_read_op` also leaves out ops that read from readers, and the
        readers.
        """
        frozen = with_test_mode(self.freeze())
        if prune_read_op:
            main = frozen.main_block
            kept = tuple(op for op in main.ops if op.type not in _READING)
            others = FrozenMap({name: var for name, var in main.vars.items() if var.kind is not VarKind.READER})
            frozen = frozen._replace(blocks=(main._replace(ops=kept, vars=others), *frozen.blocks[1:]))
        return Program.of(frozen)

    # guards

    @contextmanager
    def _roles(self, role: OpRole, names: Sequence[str]) -> Generator[None]:
        before = self.role, self.role_vars
        self.role, self.role_vars = role, tuple(names)
        try:
            yield
        finally:
            self.role, self.role_vars = before

    def _optimized_guard(self, param_and_grads: Sequence[Any]) -> Any:
        """A context manager that gives ops made in it the role of updating these parameters."""
        return self._roles(OpRole.OPTIMIZE, [getattr(var, "name", var) for var in param_and_grads])

    def _lr_schedule_guard(self, is_with_opt: bool = False) -> Any:
        """A context manager that gives ops made in it the role of computing learning rates."""
        return self._roles(OpRole.LR_SCHED | (OpRole.OPTIMIZE if is_with_opt else OpRole.FORWARD), ())

    def _backward_role_guard(self) -> Any:
        """A context manager that gives ops made in it the role of computing gradients."""
        return self._roles(OpRole.BACKWARD, ())


class ProgramDesc:
    """A program under the methods that scripts call on `program.desc`. Without an argument it makes a new program,
    given another description it copies that.
    """

    def __init__(self, program: Program | ProgramDesc | None = None):
        held: Any = program._program.clone() if isinstance(program, ProgramDesc) else program or Program()
        self._program: Program = held

    def block(self, index: int) -> BlockDesc:
        """The block with an index."""
        return self._program.block(index).desc

    def append_block(self, parent: BlockDesc) -> BlockDesc:
        """Adds a block inside another one; the current block stays the same."""
        before = self._program.current_block_idx
        made = self._program.create_block(parent.id)
        self._program.current_block_idx = before
        return made.desc

    def num_blocks(self) -> int:
        """How many blocks there are."""
        return self._program.num_blocks

    def get_feed_target_names(self) -> list[str]:
        """The variables that ops `feed` write."""
        return [name for op in self._program.global_block().ops if op.type == "feed" for name in op.output("Out")]

    def get_fetch_target_names(self) -> list[str]:
        """The variables that ops `fetch` read."""
        return [name for op in self._program.global_block().ops if op.type == "fetch" for name in op.input("X")]

    def serialize_to_string(self) -> bytes:
        """The program as the bytes of a ProgramDesc."""
        return self._program.serialize_to_string()

    def parse_from_string(self, binary_str: bytes) -> None:
        """Replaces the program's content by what the bytes of a ProgramDesc describe. Raises DiagnosticError for other
        bytes.
        """
        self._program.take(Program.parse_from_string(binary_str).freeze())

    def _version(self) -> int:
        """The version of Fluid that made the program, as a number."""
        return self._program.freeze().version or 0

    def flush(self) -> None:
        """Does nothing: the program and its description are one and the same."""


ALONE["variable"] = lambda name: Program().global_block().create_var(name=name)


def _require_program(other: Any) -> Program:
    if not isinstance(other, Program):
        raise TypeError(f"what is taken over is a Program's, not of a value of type {type(other).__name__}")
    return other


DEFAULTS = [Program(), Program()]
"""The main program in use and the start-up program in use."""

TRAINING = OpRole.BACKWARD | OpRole.OPTIMIZE | OpRole.LR_SCHED


def with_test_mode(frozen: FrozenProgram) -> FrozenProgram:
    """The program with every op set to behave as in tests."""
    blocks = tuple(
        block._replace(
            ops=tuple(
                op._replace(attrs=FrozenMap({**op.attrs, "is_test": True})) if "is_test" in op.attrs else op
                for op in block.ops
            )
        )
        for block in frozen.blocks
    )
    return frozen._replace(blocks=blocks)


def for_testing(frozen: FrozenProgram) -> FrozenProgram:
    """The forward part of a program with the variables that it uses, its ops set to behave as in tests.

    A program without gradients also keeps the ops of its learning rates, as in Fluid: their counters of steps then
    count tests too.
    """
    trains = any(op.role == LOSS_GRADIENT for block in frozen.blocks for op in block.ops)
    return with_test_mode(with_used_variables(without_roles(frozen, TRAINING)) if trains else frozen)


# A draft over two of Fluid's programs: ops and variables made in the draft are in the programs at once.


_WITHOUT_DEVICE = frozenset(
    {
        *("feed", "fetch", "recurrent", "conditional_block", "while", "send", "recv", "listen_and_serv"),
        *("fl_listen_and_serv", "checkpoint_notify", "gen_nccl_id", "c_gen_nccl_id", "c_comm_init"),
        *("c_sync_calc_stream", "c_sync_comm_stream"),
    }
)
"""Op types that the executor's thread carries out, on whatever device the other ops run."""

SCOPES = [Scopes()]
"""The name scopes in use, shared by all programs as in Fluid."""


class DoesNotFit(DiagnosticError, ShapeError):
    """The error that an op which a script makes has inputs that don't fit together; it names the script's line."""

    def __init__(self, op: Op, problem: ShapeError):
        ShapeError.__init__(self, problem.message, problem.slot, problem.gives)
        focus = op.input(problem.slot) if problem.slot in op.inputs else None
        DiagnosticError.__init__(self, [at_op("type-mismatch", problem.message, op, focus=focus or "")])


class LiveDraft(Draft):
    """The draft of a main and a start-up program of Fluid's interface. All of its state is in these programs."""

    def __init__(self, program: Any, startup_program: Any):
        self.program = program
        self.startup_program = startup_program
        self.blocks = program.drafts
        self.startup = startup_program.drafts[0]
        self.stop_gradient = program.stopped
        self.clips = program.clips
        self.regularizers = program.regularizers
        self.unaveraged = program.unaveraged

    @property
    def names(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The counters for unique names that are in use."""
        return unique_name.generator()

    @property
    def scopes(self) -> Scopes:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name scopes in use."""
        return SCOPES[0]

    @property
    def current(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The index of the block that ops are made in."""
        return self.program.current_block_idx

    @current.setter
    def current(self, block: int) -> None:
        self.program.current_block_idx = block

    def make(
        self,
        op_type: str,
        inputs: Mapping[str, Names_] | None,
        outputs: Mapping[str, Names_],
        attrs: Mapping[str, object] | None = None,
    ) -> Op:
        """An op, made as in any draft. Warns where the device in use has no effect, or where it
        overrides `force_cpu`.
        """
        given, device = attrs or {}, self.scopes.device
        if device is not None and op_type in _WITHOUT_DEVICE:
            warn(f"The Op({op_type}) is not support to set device.")  # scripts compare with this message
            with self.scopes.on(None):
                return super().make(op_type, inputs, outputs, attrs)
        if device is not None and (given.get("force_cpu") or (op_type == "less_than" and "force_cpu" in given)):
            reason = f"'device_guard' has higher priority when they are used at the same time. ({op_type})"
            warn(f"force_cpu is given inside of a device_guard: {reason}")  # scripts compare with this message too
        return super().make(op_type, inputs, outputs, attrs)

    def type_outputs(self, op: Op) -> None:
        """Declares the dims of an op's outputs, as in any draft. Raises DoesNotFit if its inputs don't fit together."""
        try:
            super().type_outputs(op)
        except ShapeError as problem:
            raise DoesNotFit(op, problem) from None

    def infer_output_types(self, op: Op) -> Types:
        """The types of an op's outputs. If the inputs don't fit, but Fluid refuses only to run the op, they are the
        types that Fluid declares.

        Some of Fluid's ops declare dims of 0 where the dims are unknown, so a dim of 0 fits any. Raises ShapeError
        where Fluid refuses to make the op.
        """
        try:
            return super().infer_output_types(op)
        except ShapeError as problem:
            if problem.declares is not None:
                return problem.declares
            held = map(self.type_of, op.input_names)
            if not any(0 in tensor.shape for tensor in held if tensor is not None):
                raise
            return infer_types(op, self._type_without_zeros)

    def type_for_shape_rules(self, name: str) -> TensorType | None:
        """A variable's type as the shape rules see it: as in Fluid, a variable without declared dims has one dim of
        length 0.
        """
        held = self.type_of(name)
        return held if held is None or held.shape else held._replace(shape=(0,))

    def _type_without_zeros(self, name: str) -> TensorType | None:
        held = self.type_of(name)
        return held and held._replace(shape=tuple(dim or -1 for dim in held.shape))

    @property
    def gradient_calls(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How often `gradients` has appended to the program."""
        return self.program.gradient_calls

    @gradient_calls.setter
    def gradient_calls(self, calls: int) -> None:
        self.program.gradient_calls = calls

    @property
    def role(self) -> OpRole:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The role of ops made now."""
        return self.program.role

    @role.setter
    def role(self, role: OpRole) -> None:
        self.program.role = role

    @property
    def role_vars(self) -> tuple[str, ...]:  # pyright: ignore
        """The role variables of ops made now."""
        return self.program.role_vars

    @role_vars.setter
    def role_vars(self, names: tuple[str, ...]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.program.role_vars = names

    @property
    def seed(self) -> int:
        """The random seed of the start-up program."""
        return self.startup_program.random_seed

    @property
    def main_seed(self) -> int:
        """The random seed of the main program."""
        return self.program.random_seed

    def main(self) -> FrozenProgram:
        """The main program as a frozen value."""
        return self.program.freeze()

    def module(self) -> Module:
        """Both programs as frozen values."""
        return Module(FrozenMap({MAIN: self.program.freeze(), STARTUP: self.startup_program.freeze()}))

    def sibling(self) -> Draft:
        """A draft of another, empty main program with the same start-up program."""
        other = type(self.program)()
        other.random_seed = self.program.random_seed
        return LiveDraft(other, self.startup_program)

    def value(self, name: str) -> Value:
        """A variable of the main program as the value that layers take."""
        return Value(self, name)
