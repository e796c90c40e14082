"""Diagnostic codes of running a cluster."""

from pstranspile.ir.codes import declare

STUCK = declare(
    "cluster-stuck",
    "No machine of the cluster can go on. The report lists every waiting machine, what it waits for, and who has not "
    "come.",
)
BARRIER = declare(
    "cluster-barrier", "A synchronous server waits for a barrier that some trainer's programs never send."
)
SCENARIO = declare(
    "cluster-scenario", "A scenario of faults can't be read, or names machines that the cluster does not have."
)
KEPT = declare(
    "cluster-kept",
    "The state that a server kept can't be read back from its file, so the server can't be started again.",
)
RECORD = declare(
    "cluster-record", "A record of a run can't be read, or the machines of the simulation do not go on as it says."
)
UNREACHABLE = declare("cluster-no-server", "A trainer talks to an endpoint at which no server of the cluster listens.")
OP = declare(
    "cluster-op", "An op that talks to servers does not name as many variables, servers or sections as belong together."
)
ORDER = declare(
    "cluster-order",
    "A trainer talks to a synchronous server at a point of its program where the server can't take it.",
)
MODES = declare("cluster-modes", "The servers of a cluster do not all work in the same mode.")
UNKNOWN_VARIABLE = declare(
    "cluster-unknown-variable", "A server was sent, or asked for, a variable that its program does not have."
)
NOT_SENT = declare("cluster-not-sent", "The servers' update reads a gradient that no trainer has sent in this step.")
ROLES = declare("cluster-roles", "The programs given are not those of a cluster that can be run.")
PROGRAMS = declare(
    "cluster-programs", "Trainers take part in one update of the servers with steps of different programs."
)
NO_PROGRAM = declare("cluster-no-program", "A trainer is to run a program that its role does not have.")
FEEDS = declare("cluster-feeds", "What is fed can't be divided over the trainers.")
PLACEMENT = declare(
    "cluster-placement", "A variable that is cut over servers can't be set or put together from its slices."
)
COLLECTIVE_ORDER = declare(
    "cluster-collective-order",
    "The programs of the trainers do not have the same collective operations in the same order.",
)
COLLECTIVE = declare("cluster-collective", "Trainers take part in a collective operation with values that do not fit.")
