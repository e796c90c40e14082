"""Diagnostic codes of the analyses."""

from pstranspile.ir.codes import declare

UNATTRIBUTED = declare(
    "optimize-op-unattributed",
    "An op with role optimize names no parameter in its role variables and is connected to none, so there is no "
    "server to run it on.",
)
NO_GRADIENT = declare(
    "gradient-not-produced",
    "The gradient of a parameter that the program optimises is written by no op that stays on the trainer.",
)
NO_OPTIMIZER = declare(
    "no-optimizer",
    "The program has no optimizer op (an op with role optimize that updates a parameter). The trainers evaluate it "
    "with the parameters of their own start-up, and the servers hold nothing.",
)
UNKNOWN_OPTIMIZER = declare(
    "optimizer-unknown",
    "An op with role optimize writes a parameter, but its type is not declared as an optimizer, so it is not known "
    "how its slots follow the slices of the parameter.",
)
AFTER_UPDATE = declare(
    "after-update-needs-trainer",
    "An op that changes a parameter after its optimizer needs values that only the trainer has, so it can't move to "
    "the server that owns the parameter.",
)
UPDATES_ITSELF = declare(
    "updates-itself",
    "An op updates parameters as it runs, without an optimizer; what it does on one trainer, no server and no other "
    "trainer would hear of.",
)
SLICED_NORM = declare(
    "sliced-norm",
    "The optimizer reads a norm over the whole parameter, but the parameter is cut into slices: every server uses the "
    "norm of its own slice, so the result depends on the number of servers (as in Fluid).",
)
LOCAL_TABLE = declare(
    "table-not-remote",
    "A sparse table is marked for remote prefetch, but something else than such lookups reads it, or Fluid's lookup on "
    "servers can't take their ids: every trainer receives the whole table instead.",
)
TABLES = declare("table-several", "A program has two distributed lookup tables, and the job distributes one by id.")
TABLE_READER = declare(
    "table-reader", "An op that stays on the trainer reads a distributed lookup table, which no trainer holds."
)
TABLE_ORDER = declare(
    "table-order", "Ids for a distributed lookup table are made after its first lookup, where all lookups take place."
)
TABLE_JOINED = declare(
    "table-joined",
    "The update of a distributed lookup table shares values with that of another parameter, as clipping by the global "
    "norm does.",
)
TABLE_PADDING = declare(
    "table-padding",
    "Lookups in a distributed lookup table have a `padding_idx`, which its servers know nothing of, as in Fluid: the "
    "row is looked up like any other.",
)
TABLE_UPDATE = declare(
    "table-update",
    "A distributed lookup table is updated by plain sgd with the sum of the trainers' gradients, whatever the program "
    "says, as Fluid does.",
)
NOT_INITIALISED = declare(
    "not-initialised",
    "An op that moves to a server reads a variable that neither @startup nor an op before gives a value.",
)
OVERWRITTEN = declare(
    "parameter-overwritten",
    "An op of the trainer writes a parameter that an optimizer updates; the servers would never see what it writes.",
)
UPDATE = declare(
    "update-variables",
    "An optimizer has another role than optimize, updates another parameter than it reads, or reads something whose "
    "type does not fit the parameter.",
)
ROLE = declare(
    "role-gradient", "The role variables of an op name a gradient that it does not compute, or that fits no parameter."
)
INITIAL_VALUE = declare("initial-value", "An op of @startup gives a variable other dims than @main declares.")
ALREADY = declare(
    "already-distributed",
    "The program talks to servers already: it is the output of a transpiler, not the input of one.",
)
GRADIENT_OF_NOTHING = declare(
    "gradient-of-nothing", "A gradient op reads other variables than every op that it could be the gradient of."
)
TRAINER_VALUE = declare(
    "needs-trainer-value", "An op that moves to a server reads a variable that an op of the trainer makes."
)
NO_UPDATES = "the main program has no optimizer op; `pstranspile grad` makes a training program of a forward one"
"""What is said of a program that trains nothing."""
