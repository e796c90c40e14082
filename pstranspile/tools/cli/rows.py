"""`pstranspile rows`: the rows of a large table in a checkpoint, as files of numpy; and counts of ids."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pstranspile.ir.diagnostics import DiagnosticError, Severity, at_op, error, in_one_line, quantity, warning
from pstranspile.ir.model import MAIN, Location
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.tools.cli.common import count, load_input, make_parser, write_text
from pstranspile.tools.cli.feed import add_feed, check_feed, read_feed
from pstranspile.tools.cli.report import report
from pstranspile.tools.cli.written_files import output_folder, telling

DESCRIPTION = """\
Writes the rows of a large table in a checkpoint to a new folder: ids.npy, numbers.npy (each row's values and optimizer
states) and seen.npy (the update that changed it last). With --serving: ids.npy and values.npy. With --since: the rows
that have changed since an earlier checkpoint, and left.npy, the ids of rows that have left since.

With --histogram INPUT, counts how often data would have each row of a program's tables looked up, and writes a file for
`--set id_counts=FILE`."""

_WRITTEN = {
    "all": "ids.npy, numbers.npy and seen.npy, of all rows",
    "serving": "ids.npy and values.npy, of all rows",
    "changed": "ids.npy, numbers.npy and seen.npy of the rows that have changed, and left.npy of those that are gone",
}
"""What is written, by which rows are asked for."""


def run(arguments: Sequence[str]) -> int:
    """Writes the rows, or the counts, and says how many there are."""
    counting = any(word.partition("=")[0] == "--histogram" for word in arguments)
    parser = _parser(counting=counting)
    options = parser.parse_args(arguments)
    of_checkpoint = [name for name in ("checkpoint", "table", "since") if getattr(options, name) is not None]
    if options.histogram is not None:
        wrong = [*of_checkpoint, *(["serving"] if options.serving else [])]
        if wrong:
            parser.error(f"{wrong[0]} is about a checkpoint; --histogram counts the ids in data")
        if not options.feed:
            parser.error("--histogram counts the ids in data, which --feed names")
        check_feed(parser, options)
        return _count(options)
    if options.feed:
        parser.error("--feed names data, whose ids --histogram INPUT counts")
    try:
        output_folder(options.output)
    except argparse.ArgumentTypeError as problem:
        parser.error(f"argument -o/--output: {problem}")
    from pstranspile.cluster.checkpoint.row_files import export_rows

    rows = "serving" if options.serving else "changed" if options.since else "all"
    with telling(options.output, _WRITTEN[rows]):
        rows_written = export_rows(options.checkpoint, options.table, options.output, rows=rows, since=options.since)
    print(f"{quantity(rows_written, 'row')} of {in_one_line(options.table)}")
    return 0


def _parser(*, counting: bool) -> argparse.ArgumentParser:
    """The options; CHECKPOINT and TABLE are needed unless ids are to be counted."""
    parser = make_parser(
        "rows",
        DESCRIPTION,
        [
            "kept words --serving -o words.serving",
            "kept words --since before -o words.changed",
            "--histogram net.ir --feed clicks.csv --batch 4096 -o ids.json",
        ],
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        nargs="?" if counting else None,
        help="a checkpoint, or a folder of them: the newest is taken",
    )
    parser.add_argument("table", metavar="TABLE", nargs="?" if counting else None, help="the name of the table")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR|FILE",
        required=True,
        help="the folder to write rows to; the file to write counts to, - for stdout",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--serving", action="store_true", help="the values alone, without optimizer states")
    which.add_argument("--since", metavar="CHECKPOINT", help="only rows that have changed since this checkpoint")
    group = parser.add_argument_group("counts of ids")
    group.add_argument(
        "--histogram",
        metavar="INPUT",
        help="count how often data would have each row of this program's tables looked up",
    )
    group.add_argument("--steps", type=count, metavar="N", help="how many steps of the data (default: all)")
    add_feed(group)
    return parser


def _count(options: argparse.Namespace) -> int:
    """Counts the ids in data, and writes the counts. Raises DiagnosticError."""
    from pstranspile.cluster.data.id_counts import count_ids
    from pstranspile.cluster.data.loader import LoaderRows
    from pstranspile.cluster.data.source import Data
    from pstranspile.compiler.cost.counts import counts_text
    from pstranspile.runtime.run.step_feeds import Feeds, RowFeeds, RowSource

    module = load_input(options.histogram)
    feed_source = read_feed(options, {MAIN: module.main}, module)
    if isinstance(feed_source, LoaderRows):
        feed_source.take_any_id()
    feeds = (
        RowFeeds(module.main, feed_source)
        if isinstance(feed_source, RowSource)
        else Feeds(module.main, feed_source or {})
    )
    steps = options.steps or feeds.steps or 1
    feeds.require(steps)
    found = count_ids(module.main, feeds.step, steps)
    for table, op in found.lookups_of_computed_ids.items():
        message = f"the ids of %{table} are not fed but made, so they are not counted"
        report([at_op("id-counts", message, op, focus=f"%{table}", severity=Severity.WARNING)])
    for table, one in found.uncounted_ids.items():
        var = module.main.main_block.vars[table]
        known = "ids below 0" if takes_any_id(var.shape) else f"ids that are not in 0 to {var.shape[0] - 1:,}"
        message = f"{one.input} holds {known}, which are not counted for %{table}: {one.ids:,}, "
        message += f"the first ({one.first_id}) in "
        file, row = (
            feed_source.row_of(one.step, one.row) if isinstance(feed_source, Data) else (options.feed, one.row + 1)
        )
        message += f"row {row:,}" if isinstance(feed_source, Data) else f"step {one.step + 1}, row {row:,}"
        report([warning("id-counts", message, Location(file))])
    if isinstance(feed_source, RowSource):
        report(feed_source.warnings())
    if not found.counts.tables:
        message = "the program looks up no rows at ids that it is fed"
        raise DiagnosticError([error("id-counts", message, Location(options.histogram))])
    tables = quantity(len(found.counts.tables), "table")
    what = f"the counts of ids of {tables} in {quantity(found.counts.batch_rows, 'row')}"
    read = [options.histogram, options.feed]
    write_text(options.output, counts_text(found.counts), read, "counts", what)
    return 0
