"""The emission rules: every way in which the compiler makes an op that the source does not have.

An op that a rule made carries the rule's name in its origin, along with the source op it was made for. `explain` prints
the texts of this file, and docs/reference/explain.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from pstranspile.compiler.plan.plan import Plan, PlannedParameter, Slice
from pstranspile.ir.attributes import AttrValue
from pstranspile.ir.model import FrozenMap, Location, Op, Origin, Program, Slots

# The modes with servers differ in when data moves between trainers and servers, and under which names.


class Timing(Protocol):
    """The answers of a mode with servers to the emitters' questions about time, which they do not decide themselves.

    `origin` is the source op (or program) for which the ops are made; the mode adds its rule.
    """

    orders_table_send: bool
    """Whether the send of the distributed lookup table's gradient has a control variable."""

    def after_sends(self, plan: Plan, trainer: int, origin: Origin | None) -> Sequence[Op]:
        """Ops of a trainer between the last send and the first recv."""
        ...

    def recv_after(self, plan: Plan, parameter: PlannedParameter) -> str:
        """The control variable that the recv of a parameter waits for."""
        ...

    def after_recvs(self, plan: Plan, trainer: int, received: Sequence[str], origin: Origin | None) -> Sequence[Op]:
        """Ops of a trainer after its recvs, before slices are joined."""
        ...

    def server_inputs(self, plan: Plan, slice_: Slice) -> Sequence[str]:
        """Names under which a server receives the gradient of a slice."""
        ...

    def merge(self, plan: Plan, slice_: Slice, origin: Origin | None) -> Sequence[Op]:
        """Ops of a server that make the merged gradient of a slice from the received ones."""
        ...

    def server_attrs(self, plan: Plan) -> Mapping[str, AttrValue]:
        """Attributes of listen_and_serv that depend on the mode."""
        ...


class Rule(NamedTuple):
    """A rule: its name, and the reason why it makes an op (a sentence)."""

    name: str
    reason: str


RULES: dict[str, Rule] = {}
"""Every rule by name, in the order in which docs/reference/explain.md lists them."""


def _declare(name: str, reason: str) -> str:
    """Adds a rule and returns its name. Raises ValueError if the name is taken."""
    if name in RULES:
        raise ValueError(f"the rule {name} is declared twice")
    RULES[name] = Rule(name, reason)
    return name


WHOLE = -1
"""The op number in an origin that refers to a program as a whole."""


def derived_origin(origin: Origin | None, rule: str) -> Origin:
    """The origin of an op that `rule` made for the op with this origin (None: the source op is not known)."""
    if origin is None:
        return Origin("main", 0, WHOLE, None, rule)
    return Origin(origin[0], origin[1], origin[2], origin[3], rule)


def made_of_program(program: Program, rule: str, name: str = "") -> Origin:
    """The origin of an op that `rule` made for a program as a whole; its location is that of the main block.

    `name` is the program's name; if it is not given, it is taken from the origin of the first op.
    """
    block = program.main_block
    first = block.ops[0].origin if block.ops else None
    if first is None:
        return Origin(name or "main", 0, WHOLE, block.location, rule)
    file = Location(first.location.file) if first.location else None
    return Origin(name or first.program, 0, WHOLE, block.location or file, rule)


# Trainers' main programs.
KEEP_CLIP = _declare(
    "keep-clip",
    "A clip that reads only what the trainer has stays on it, as a part of the backward pass, so that what is "
    "sent is clipped.",
)
SPLIT_GRADIENT = _declare(
    "split-gradient",
    "The parameter is cut into slices that lie on several servers, so its gradient is cut in the same way "
    "before it is sent.",
)
SEND_GRADIENT = _declare(
    "send-gradient",
    "The update of the parameter moved to its servers, so the gradient is sent to them as soon as it is complete.",
)
SEND_COUNTER = _declare(
    "send-step-counter",
    "No barrier tells the servers that a step is over, so every trainer counts its steps and sends its count "
    "to all servers.",
)
SEND_BARRIER = _declare(
    "send-barrier",
    "The trainer has sent all gradients of the step; every server updates when all trainers have said so.",
)
COMMUNICATOR_BARRIER = _declare(
    "communicator-barrier",
    "The trainer waits until its own communicator has sent what it was given, so that no step overtakes the last one.",
)
RECEIVE_PARAMETER = _declare(
    "receive-parameter",
    "The parameter is updated on its servers, so the trainer fetches its new value from them for the next step.",
)
FETCH_BARRIER = _declare(
    "fetch-barrier",
    "The trainer has fetched all parameters; no server takes gradients of the next step before all trainers have.",
)
JOIN_SLICES = _declare(
    "join-slices",
    "The parameter arrives in slices from several servers; joined along dim 0 they are the parameter again.",
)
LOOKUP = _declare(
    "lookup-on-servers",
    "The table has a sparse gradient and stays on the servers; the trainer looks up just the rows that it needs, "
    "for all lookups of one kind at once.",
)
TABLE_LOOKUP = _declare(
    "table-lookup",
    "The distributed lookup table is dealt out over the servers by id: ids go to their servers, rows come back, "
    "and each lookup gets what it asked for.",
)
SPLIT_TABLE_GRADIENT = _declare(
    "split-table-gradient",
    "The rows of the table's gradient are dealt out by id, as the table is.",
)
SEND_TABLE_GRADIENT = _declare(
    "send-table-gradient",
    "The distributed lookup table is updated on the servers, so each gets the rows of the gradient that belong to it.",
)

REPORT_ROWS = _declare(
    "tell-rows",
    "The step is over: the trainer's communicator is told the ids of the table rows that the step may have changed.",
)
REPORT_STEP = _declare(
    "tell-step",
    "The step is over: the trainer's communicator counts steps, and takes no notice of a send without a variable.",
)
LOCAL_LOOKUP = _declare(
    "look-up-locally",
    "The trainer has the whole table and updates it, so the lookup needs no rows from the servers.",
)

# Trainers' start-up programs.
RECEIVE_FIRST = _declare(
    "receive-first-value",
    "All trainers start from what the servers initialised; the trainer's own initial value is overwritten.",
)
START_BARRIER = _declare(
    "start-barrier",
    "The trainer has fetched all first values; synchronous servers take no gradient before all trainers have.",
)
NO_MEMORY = _declare(
    "remote-table",
    "The table stays on the servers; on the trainer it gets its dims and no memory.",
)
BEGIN_EXCHANGE = _declare(
    "begin-exchange",
    "The parameters are there: the trainer's communicator keeps a copy, to find out later what the trainer changed.",
)

# Servers' main programs.
SERVE = _declare(
    "serve",
    "The server's only op in its main block: it waits for messages of the trainers and runs the block each is "
    "meant for.",
)
SCHEDULE = _declare(
    "schedule-on-servers",
    "The learning rate is needed where the updates are, so every server computes its schedule, before any update.",
)
SHARE_COUNTER = _declare(
    "share-step-counter",
    "No barrier marks the steps, so the schedule runs on the sum of what the trainers count instead of an increment.",
)
START_COUNTER = _declare(
    "start-step-counter",
    "Every trainer's count of steps starts at 1, and the shared one at minus the number of trainers.",
)
MERGE = _declare(
    "merge-gradients",
    "The gradients of all trainers are averaged: summed, then divided by the number of trainers.",
)
UPDATE = _declare(
    "update-slice",
    "The update of the parameter, on the part of it that this server owns: weight decay, clips and the optimizer.",
)
AFTER_UPDATE = _declare(
    "follow-update",
    "The op changes a parameter after its update, so it follows the update on the parameter's server.",
)
COMPENSATE = _declare(
    "compensate-delay",
    "The gradient was computed with an older value of the parameter: g + g * g * (w - w_backup) corrects it "
    "to first order (Zheng et al. 2017, arXiv:1609.08326).",
)
MERGE_TABLE = _declare(
    "merge-table-gradients",
    "The gradients of all trainers for this server's part of the table are added up (Fluid does not divide them).",
)
UPDATE_TABLE = _declare(
    "update-table",
    "The distributed lookup table is updated by sgd with the learning rate of the source's update, whatever that was.",
)
SERVE_ROWS = _declare(
    "serve-rows",
    "Looks up the rows of the distributed lookup table that trainers ask this server for.",
)
SAVE_TABLE = _declare(
    "save-table",
    "Saves this server's part of the distributed lookup table when a trainer asks for a checkpoint.",
)
ADD_CHANGE = _declare(
    "add-change",
    "Trainers update the parameter themselves and send what they changed; the server adds it to its slice.",
)

# Servers' start-up programs.
INITIALISE = _declare(
    "initialise-slice",
    "The source's initialiser, of the part of the variable that this server owns.",
)
FILL_BACKUP = _declare(
    "fill-backup",
    "Every trainer's backup starts as the parameter is initialised; the compensation of delay compares with it.",
)

# Modes without servers.
EXCHANGE_IDS = _declare(
    "exchange-ids",
    "The trainers agree on the ids of their communicators; Fluid's executor then adds the sums of gradients itself.",
)
JOIN_RING = _declare(
    "join-ring",
    "The trainer joins a ring: it learns the ring's id from trainer 0 and says which rank it has.",
)
JOIN_DEVICES = _declare(
    "join-devices",
    "All devices of the process form one ring.",
)
BROADCAST = _declare(
    "broadcast-parameter",
    "All trainers start from the parameters that trainer 0 initialised; the rings take turns.",
)
WAIT_BROADCASTS = _declare(
    "wait-for-broadcasts",
    "The step must not begin before the broadcasts of this ring are over.",
)
AVERAGE = _declare(
    "average-gradients",
    "The gradient of the loss is divided by the number of trainers, which makes the sums of all gradients means; in "
    "mode ddp each gradient is divided where a backward of the user's own is not linear.",
)
SUM_GRADIENT = _declare(
    "sum-gradient",
    "The gradient is complete; it is summed over all trainers, once what computes it is done. The rings take turns.",
)
WAIT_SUMS = _declare(
    "wait-for-sums",
    "What follows reads what is summed, so the sums of this ring must be over.",
)
SUM_DIFFERENCES = _declare(
    "sum-differences",
    "How far the parameter moved in this step (snapshot less value) is summed over all trainers.",
)
AVERAGE_PARAMETERS = _declare(
    "average-parameters",
    "The snapshot less the mean of what the trainers moved is the mean of their parameters; it is the next "
    "snapshot too.",
)
FIRST_SNAPSHOT = _declare(
    "first-snapshot",
    "The snapshot that the first step compares with is the parameter as it starts out.",
)

# Before compiling.
GRADIENT = _declare(
    "gradient",
    "Not of the compiler: `pstranspile grad` made the op, as the backward pass of the source op.",
)


# Ops with variables renamed.


def rename_slots(slots: Slots, names: Mapping[str, str]) -> Slots:
    """Slots with variable names replaced; the same object if nothing changes."""
    for row in slots.values():
        for name in row:
            if name in names:
                return FrozenMap({slot: tuple([names.get(n, n) for n in given]) for slot, given in slots.items()})
    return slots


def rename_vars(op: Op, names: Mapping[str, str]) -> Op:
    """The op with new names of its inputs, outputs and role variables."""
    op_type, inputs, outputs, attrs, role, role_vars, is_target, origin = op
    if role_vars:
        role_vars = tuple([names.get(name, name) for name in role_vars])
    renamed_inputs, renamed_outputs = rename_slots(inputs, names), rename_slots(outputs, names)
    return Op(op_type, renamed_inputs, renamed_outputs, attrs, role, role_vars, is_target, origin)
