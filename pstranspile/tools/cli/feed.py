"""`--feed` and related options: the feed of a program, as arrays of all steps or as rows of files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pstranspile.frontends.loading import of_python
from pstranspile.ir.argument_checks import MOST_CHECKED, is_separator
from pstranspile.ir.diagnostics import DiagnosticError, Note, name_list
from pstranspile.ir.patterns import Pattern
from pstranspile.tools.cli.common import count, number, whole
from pstranspile.tools.cli.report import quoting, report
from pstranspile.tools.cli.written_files import say

if TYPE_CHECKING:
    from pstranspile.cluster.data.loader import LoaderRows
    from pstranspile.cluster.data.source import Data
    from pstranspile.compiler.compile import Compiled
    from pstranspile.ir.model import Module, Program, Role
    from pstranspile.runtime.run.files import ArrayFile
    from pstranspile.runtime.run.step_feeds import Dealing

FORMATS = ("parquet", "arrow", "csv", "tsv", "jsonl", "multislot")

_DEALT = Pattern("0:[1-9][0-9]{0,8}(,[1-9][0-9]{0,8}:[1-9][0-9]{0,8})*")

_OF_ROWS = ("batch", "epochs", "shuffle", "columns", "names", "format", "separator", "bad_rows")
"""Options that say how rows are fed."""


def add_feed(group: Any, *, made: bool = False) -> None:
    """The options that say what a program is fed. `made`: without `--feed` data are made."""
    group.add_argument(
        "--feed",
        metavar="FILE|DIR|URI",
        help="the inputs: an .npz file of arrays for all steps; or files of rows (Parquet, Arrow, CSV, JSON lines, "
        "MultiSlot text), a folder of them, or a pattern; or FILE.py:NAME, a function of a Python file that is called "
        "with the number of a trainer and of all trainers, and gives that trainer's batches",
    )
    default = " (default for data that are made: 3 per trainer)" if made else ""
    group.add_argument(
        "--batch",
        type=number(1, MOST_CHECKED) if made else count,
        metavar="N",
        help=f"how many rows a step takes, of all trainers together{default}",
    )
    group.add_argument("--epochs", type=count, metavar="N", help="how often all rows are fed (default: once)")
    group.add_argument("--shuffle", type=whole, metavar="SEED", help="shuffle rows in every epoch, as this seed says")
    group.add_argument(
        "--columns",
        metavar="INPUT=COLUMN,...",
        action="append",
        default=[],
        help="the columns that an input takes, one beside another (`x=f*`: all that begin with f; default: the one of "
        "its name); may be repeated",
    )
    group.add_argument("--names", metavar="NAME,...", help="what columns are called, or slots, if files don't say it")
    group.add_argument("--format", choices=FORMATS, help="the format of the rows (default: what file names say)")
    group.add_argument(
        "--separator",
        type=separator,
        metavar="SIGN",
        help="the sign between the fields of CSV, such as ';' or tab (default: a comma; of .tsv a tab)",
    )
    group.add_argument(
        "--bad-rows",
        choices=("refuse", "skip"),
        help="what is done about rows that can't be fed: end the run (default), or leave them out and count them",
    )


def separator(text: str) -> str:
    """The type of `--separator`: a sign, or `tab`."""
    sign = "\t" if text in ("tab", "\\t") else text
    if not is_separator(sign):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no sign between fields, such as ';' or tab")
    return sign


def check_feed(parser: argparse.ArgumentParser, options: argparse.Namespace, *, made: bool = False) -> None:
    """Ends the command if the options about rows don't go with what `--feed` names.

    `made`: without `--feed` data are made, `--batch` rows a step.
    """
    if made and not options.feed:
        others = [name for name in _OF_ROWS if name != "batch" and getattr(options, name) not in (None, [])]
        if others:
            parser.error(f"--{others[0].replace('_', '-')} is about rows, and --feed names none")
        return
    if options.feed and options.feed.lower().endswith(".py") and of_python(options.feed) is None:
        parser.error(f"{options.feed} is a Python script; --feed {options.feed}:NAME names a function of it")
    row_options = [f"--{name.replace('_', '-')}" for name in _OF_ROWS if getattr(options, name) not in (None, [])]
    if row_options and not options.feed:
        parser.error(f"{row_options[0]} is about rows, and --feed names none")
    if options.feed and of_python(options.feed) is not None:
        wrong = [option for option in row_options if option != "--names"]
        if wrong:
            parser.error(f"{wrong[0]} is about rows; the function {options.feed} gives batches")
        return
    if options.feed and row_options and not is_rows(options):
        parser.error(f"{row_options[0]} is about rows; {options.feed} holds arrays, with an entry for each step")
    if options.feed and is_rows(options) and not options.batch:
        parser.error(f"{options.feed} holds rows; --batch N says how many of them a step takes")
    for text in options.columns:
        name, _, columns = text.partition("=")
        if not (name and columns):
            parser.error(f"--columns {text}: give it as INPUT=COLUMN,COLUMN")
        if sum(other.startswith(f"{name}=") for other in options.columns) > 1:
            parser.error(f"--columns {text}: the columns of {name} are given twice")


def read_feed(
    options: argparse.Namespace,
    programs: Mapping[str, Program],
    source: Module | None = None,
    most: int | None = None,
) -> ArrayFile | Data | LoaderRows | None:
    """What `--feed` names; None without it. Arrays that none of the `programs` declares are left out, which is told, as
    is where others hold NaN or infinity, or no rows.

    The example of the `source` says how the inputs of a batch are called that a function gives without names. Raises
    DiagnosticError.
    """
    if not options.feed:
        return None
    if of_python(options.feed) is not None:
        from pstranspile.cluster.data.loader import LoaderRows

        example = list(source.example) if source is not None else []
        names = options.names.split(",") if options.names else example
        return LoaderRows(options.feed, names, options.steps, batch_limit=most, counting=_tell_of_counting)
    if not is_rows(options):
        from pstranspile.cluster.net.status import STATUS
        from pstranspile.runtime.run.files import odd_arrays, read_arrays
        from pstranspile.runtime.run.step_feeds import declared_arrays

        arrays, left = declared_arrays(read_arrays(options.feed), programs)
        if STATUS not in os.environ:  # the process that has started this one tells of them
            report([*left, *odd_arrays(arrays)])
        return arrays
    from pstranspile.cluster.data.source import Data

    return Data(
        options.feed,
        batch=options.batch,
        epochs=options.epochs or 1,
        shuffle=options.shuffle,
        columns={text.partition("=")[0]: text.partition("=")[2].split(",") for text in options.columns},
        names=options.names.split(",") if options.names else (),
        format=options.format or "",
        separator=options.separator or "",
        bad_rows=options.bad_rows or "refuse",
    )


def _tell_of_counting(place: str) -> None:
    say(f"{place}: its batches are counted first; --steps N spares that")


def is_rows(options: argparse.Namespace) -> bool:
    """Whether `--feed` names rows: a folder, a pattern, a URI, a file with such an ending, or any with `--batch`."""
    from glob import has_magic

    from pstranspile.cluster.data.files import has_format
    from pstranspile.ir.reading import is_address

    path = options.feed
    if path.lower().endswith(".npz"):
        return False
    return bool(options.batch) or is_address(path) or has_format(path) or has_magic(path) or os.path.isdir(path)


@contextmanager
def suggesting_feed(options: argparse.Namespace) -> Generator[None]:
    """Says how inputs are fed, where they are missing and no file was given; or which arrays are in the file."""
    try:
        yield
    except DiagnosticError as problem:
        *others, last = problem.diagnostics
        note = None if last.code != "run-feed-missing" else _about_feed(options)
        if note is None:
            raise
        raise DiagnosticError([*others, last._replace(notes=(*last.notes, note))]) from None


def _about_feed(options: argparse.Namespace) -> Note | None:
    """A note about inputs that are missing; None where inputs are no arrays of a file."""
    if not options.feed:
        return Note(
            "--feed FILE.npz gives the inputs of all steps; rows of files are fed with --feed FILE.csv --batch N"
        )
    if of_python(options.feed) is not None or is_rows(options):
        return None
    from pstranspile.runtime.run.files import names_in

    return Note(f"{options.feed} has {name_list(names_in(options.feed)) or 'no arrays'}")


@contextmanager
def telling_of_made_ids(options: argparse.Namespace, module: Module) -> Generator[None]:
    """Says why a row was not left out whose ids a table has no row for: where ops make the ids, data don't hold
    them.
    """
    try:
        yield
    except DiagnosticError as problem:
        if options.bad_rows != "skip":
            raise
        from pstranspile.runtime.run.feeds import made_ids

        made = {op.origin.location: table for table in made_ids(module.main) if (op := table.op).origin is not None}
        raise DiagnosticError(
            one._replace(notes=(*one.notes, _not_skipped(made[one.location].ids)))
            if one.code == "run-op-failed" and one.location in made
            else one
            for one in problem.diagnostics
        ) from None


def _not_skipped(ids: str) -> Note:
    return Note(
        f"--bad-rows skip leaves out rows by the ids that an input holds; %{ids} is made by an op, so that it is not "
        "known before the step"
    )


def require_fed_inputs(
    options: argparse.Namespace, compiled: Compiled | None, trainers: Sequence[Role], given: Mapping[str, Any] | None
) -> None:
    """Ends the command, before any machine begins, if trainers read inputs that are not fed. Raises DiagnosticError."""
    from pstranspile.runtime.run.step_feeds import require_inputs

    source = None if compiled is None else compiled.source
    with quoting(None if source is None else source.source), suggesting_feed(options):
        require_inputs(trainers, given, source)


def forwarded_options(options: argparse.Namespace) -> list[str]:
    """The same options for the command line of another process."""
    if not options.feed:
        return []
    from pstranspile.ir.reading import is_address

    given = options.feed
    result = ["--feed", given if is_address(given) else os.path.abspath(given)]
    for name in ("batch", "epochs", "shuffle", "names", "format", "separator", "bad_rows"):
        if getattr(options, name) is not None:
            result += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    if getattr(options, "dealt", ""):
        result += ["--dealt", options.dealt]
    return result + [part for text in options.columns for part in ("--columns", text)]


def dealt_text(dealing: Dealing | None) -> str:
    """How rows are dealt, for the command line of another process: `0:2,500:4`."""
    return ",".join(f"{step}:{trainers}" for step, trainers in dealing.dealt) if dealing is not None else ""


def dealt_feed(options: argparse.Namespace, programs: Mapping[str, Program]) -> ArrayFile | Data | LoaderRows | None:
    """The data that `--feed` names; rows are dealt as in `--dealt`. Raises DiagnosticError."""
    from pstranspile.cluster.data.source import Data

    result = read_feed(options, programs)
    if isinstance(result, Data) and options.dealt:
        result.deal(options.dealt)
    return result


def dealing(text: str) -> tuple[tuple[int, int], ...]:
    """The type of `--dealt`: since which step how many trainers rows were dealt to, as `dealt_text` writes it."""
    if not _DEALT.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} does not say STEP:N,STEP:N")
    pairs = (pair.split(":") for pair in text.split(","))
    return tuple((int(step), int(trainers)) for step, trainers in pairs)
