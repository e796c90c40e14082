"""Diagnostic codes of running programs."""

from pstranspile.ir.codes import declare

NO_KERNEL = declare("run-no-kernel", "The program has an op of a type that can't be run: it has no kernel.")
UNINITIALISED = declare(
    "run-uninitialised",
    "An op reads a variable that has no value yet. A parameter gets its value from the start-up program, which must "
    "have run in the same scope; an input of the model gets its value from the feed.",
)
KERNEL_FAILED = declare("run-op-failed", "An op can't compute with the values it was given.")
FEED_UNKNOWN = declare("run-feed-unknown", "A value is fed to a variable that block 0 of the program does not declare.")
FEED_MISSING = declare("run-feed-missing", "The program reads an input that is not fed.")
FEED_MISMATCH = declare(
    "run-feed-mismatch", "The element type, dims or LoD of a fed value disagree with the declaration of the variable."
)
FETCH_UNKNOWN = declare("run-fetch-unknown", "A variable to fetch is not declared, or has no value after the run.")
NOT_FINITE = declare("run-not-finite", "An op made a number that is not finite (NaN or infinity) of finite inputs.")
FILE_UNUSABLE = declare("run-file-unusable", "A file of feeds or of initial values can't be used.")
SAVE_IMPOSSIBLE = declare("run-save-impossible", "A fetched value can't be written to the file of results.")
CLUSTER = declare("run-cluster", "An option of `run` looks at one machine only, but the job describes a cluster.")
PLOT_IMPOSSIBLE = declare("run-plot-impossible", "The fetched values can't be drawn.")
SHARES = declare(
    "feed-shares",
    "Trainers are fed shares of a batch with different numbers of rows, which count the same (a warning); or shares "
    "are to count by their rows where that can't be done.",
)
TURNS = declare("program-turns", "Which program is to be run in which step can't be read, or names no such program.")
