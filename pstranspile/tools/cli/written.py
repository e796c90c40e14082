"""What commands say of the files that they write: what is where, and, of an interrupted command, what is not."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from pstranspile.ir.diagnostics import listed

ENDINGS = (
    *(".ir", ".pb", ".pdmodel", ".onnx", ".mlir", ".dot", ".gv", ".mmd"),
    *(".npz", ".json", ".toml", ".html", ".png", ".svg"),
)
"""How files end that commands read and write. A new folder does not end so: somebody meant a file."""


def saved(names: Iterable[str]) -> str:
    """What `--save` has written, which holds arrays of these names."""
    kinds = {name.startswith("param/") for name in names}
    if kinds == {True, False}:
        return "the fetched values and the final parameters"
    if True in kinds:
        return "the final parameters; nothing was fetched, --fetch VAR names what to show and save"
    if False in kinds:
        return "the fetched values; the program has no parameters"
    return "nothing: the program has no parameters, and nothing was fetched, --fetch VAR names what to show and save"


MOST_NAMED = 4
"""How many files of a folder are named, before the others are counted."""


def is_file_name(path: str) -> bool:
    """Whether a name is meant for a file: it ends as one, and there is no folder of this name."""
    return path.lower().endswith(ENDINGS) and not os.path.isdir(path)


def folder_name(name: str) -> str:
    """The type of options that take a folder to write to: `-` and the empty name are refused, they mean none."""
    if name in ("", "-"):
        raise argparse.ArgumentTypeError(f"{name!r} is no folder" + ("; ./- is one" if name else ""))
    return name


def output_folder(name: str) -> str:
    """The type of options that take a folder to write to: as `folder_name`, and no new folder is named as files are.

    With a slash after it (`net.ir/`), any name is that of a folder.
    """
    folder_name(name)
    if is_file_name(name):
        raise argparse.ArgumentTypeError(
            f"{name} is the name of a file, and more than one is written; name a folder ({name}/ is one)"
        )
    return name


@contextmanager
def telling(path: str | None, what: str, *then: str) -> Generator[None]:
    """When the block has written a file or folder: says on stderr what it is, which folders above it were made, and
    what to do next. Nothing is said of what goes to stdout.
    """
    made = "" if path is None or path == "-" else folder_made(path)
    yield
    if path is None or path == "-":
        return
    print("\n".join([f"{path}: {what}{made}", *then]), file=sys.stderr)


def folder_made(path: str | os.PathLike[str]) -> str:
    """What to say of the folder that must be made for a file or folder: nothing if its own folder is there."""
    above = Path(path).parent
    missing = [folder for folder in (above, *above.parents) if not os.path.lexists(folder)]
    return f" (made the folder {missing[-1]})" if missing else ""


@contextmanager
def telling_of_folder(folder: str, written: Iterable[str], what: str, *then: str) -> Generator[None]:
    """As `telling`, and says which files in the folder are none of those that the block has written or removed."""
    try:
        before = {*os.listdir(folder)}
    except OSError:
        before = set[str]()
    with telling(folder, what, *then):
        yield
        others = sorted(before.intersection(os.listdir(folder)).difference(name.split("/")[0] for name in written))
        if others:
            named = listed(others, MOST_NAMED)
            print(f"{folder}: left as it was, being none of this command's: {named}", file=sys.stderr)


_STATUSES = [128 + int(number) for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
"""Exit statuses of a process that a signal has told to end."""


def is_told_to_end(stop: BaseException) -> bool:
    """Whether an exception ends the command because of a signal."""
    return isinstance(stop, KeyboardInterrupt) or (isinstance(stop, SystemExit) and stop.code in _STATUSES)


@contextmanager
def telling_what_is_missing(*sentences: str) -> Generator[None]:
    """Says on stderr, in a sentence, what an interrupted command has not done."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        if is_told_to_end(stop):
            print(f"interrupted: {'; '.join(sentences)}", file=sys.stderr)
        raise


def not_written(*paths: str | None) -> str:
    """The sentence that results of an interrupted command are missing."""
    named = [path for path in paths if path is not None and path != "-"]
    if not named:
        return "the output is not complete"
    return f"{' and '.join(named)} {'was' if len(named) == 1 else 'were'} not written"
