"""The diagnostic codes of the link check. Every one is a fault of the compiler: the programs it emitted do not fit."""

from __future__ import annotations

from pstranspile.ir.codes import declare

SEND = declare("link-send", "A variable is sent to a server that does not expect it, or expects another type.")
UNMADE = declare("link-unmade", "A trainer sends or cuts up a variable that nothing in its program makes before.")
UNSENT = declare("link-unsent", "A server waits for a variable that no trainer, or more than one, sends.")
RECEIVE = declare("link-receive", "A variable is fetched from a server that does not hold it, or holds another type.")
UNFETCHED = declare("link-unfetched", "A trainer does not fetch a parameter that a server updates, or loses it again.")
BARRIER = declare("link-barrier", "The barriers of the trainers and the number of trainers a server waits for differ.")
ORDER = declare("link-order", "An op that talks to other machines stands before an op that it has to wait for.")
IDENTITY = declare("link-identity", "Two machines have the same number or endpoint, or one has several numbers.")
OWNER = declare("link-owner", "A slice has no server that updates it, or more than one.")
PARTITION = declare("link-partition", "The slices of a variable do not make up the whole of it, in its order.")
BLOCKS = declare("link-blocks", "The blocks a listen_and_serv refers to do not exist or are not its own.")
UNSERVED = declare("link-unserved", "An op on a server reads a variable that is not received, made or initialised.")
MERGE = declare("link-merge", "A server does not take the mean of exactly one gradient of every trainer.")
STATE = declare("link-state", "What a server initialises or keeps for a slice has other dims than the slice.")
LOOKUP = declare("link-lookup", "Rows are looked up in slices of a table that the servers do not hold like that.")
PREFETCH = declare(
    "link-prefetch", "The lookups, gradients or blocks of a table that is dealt out by id do not belong together."
)
COUNTER = declare("link-counter", "A step counter of a trainer does not reach every server that adds it up.")
BACKUP = declare("link-backup", "The copies of a slice that a server keeps for each trainer are missing or mixed up.")
GEO = declare("link-geo", "The changes that trainers push in mode geo do not fit what the servers add them to.")
RING = declare(
    "link-ring", "The trainers do not agree on a ring of collective operations, or use one before it is made."
)
COLLECTIVE = declare(
    "link-collective", "The trainers do not carry out the same collective operations in the same order."
)
REDUCED = declare("link-reduced", "What an optimizer uses is not reduced over all trainers exactly once before.")
