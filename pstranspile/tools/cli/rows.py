"""`pstranspile rows`: the rows of a large table in a checkpoint, as files of numpy."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.diagnostics import counted
from pstranspile.tools.cli.common import make_parser
from pstranspile.tools.cli.written import output_folder, telling

DESCRIPTION = """\
Writes the rows of a large table in a checkpoint to a new folder: ids.npy, numbers.npy (each row's values and optimizer
states) and seen.npy (the update that changed it last). With --serving: ids.npy and values.npy. With --since: the rows
that have changed since an earlier checkpoint, and left.npy, the ids of rows that have left since."""

_WRITTEN = {
    "all": "ids.npy, numbers.npy and seen.npy, of all rows",
    "serving": "ids.npy and values.npy, of all rows",
    "changed": "ids.npy, numbers.npy and seen.npy of the rows that have changed, and left.npy of those that are gone",
}
"""What is written, by which rows are asked for."""


def run(arguments: Sequence[str]) -> int:
    """Writes the rows, and says how many there are."""
    parser = make_parser(
        "rows", DESCRIPTION, ["kept words --serving -o words.serving", "kept words --since before -o words.changed"]
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a folder of them: the newest is taken"
    )
    parser.add_argument("table", metavar="TABLE", help="the name of the table")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=output_folder, required=True, help="the folder to write to"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--serving", action="store_true", help="the values alone, without optimizer states")
    which.add_argument("--since", metavar="CHECKPOINT", help="only rows that have changed since this checkpoint")
    options = parser.parse_args(arguments)
    from pstranspile.cluster.checkpoint.row_files import export_rows

    rows = "serving" if options.serving else "changed" if options.since else "all"
    with telling(options.output, _WRITTEN[rows]):
        count = export_rows(options.checkpoint, options.table, options.output, rows=rows, since=options.since)
    print(f"{counted(count, 'row')} of {options.table}")
    return 0
