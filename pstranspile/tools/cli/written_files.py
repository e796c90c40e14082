"""What commands say of the files that they write: what is where, and, of an interrupted command, what is not."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pstranspile.cluster.checkpoint import numbered_checkpoints
from pstranspile.ir.diagnostics import in_one_line, name_list, shell_word
from pstranspile.ir.patterns import Pattern

ENDINGS = (
    *(".ir", ".pb", ".pdmodel", ".onnx", ".mlir", ".dot", ".gv", ".mmd"),
    *(".npz", ".json", ".toml", ".html", ".png", ".svg"),
)
"""How files end that commands read and write. A new folder does not end so: somebody meant a file."""


def saved_arrays_text(names: Iterable[str]) -> str:
    """A description of the file that `--save` has written, from the names of the arrays in it."""
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


def say(text: str) -> None:
    """Prints a line on stderr, in which line breaks of names and other hidden characters are escaped."""
    print(in_one_line(text), file=sys.stderr)


@contextmanager
def telling(path: str | None, what: str, *then: str) -> Generator[None]:
    """When the block has written a file or folder: says on stderr what it is, which folders above it were made, and
    what to do next. Nothing is said of what goes to stdout.
    """
    made = "" if path is None or path == "-" else folder_made(path)
    yield
    if path is None or path == "-":
        return
    PENDING.written(path)
    for line in (f"{path}: {what}{made}", *then):
        say(line)


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
            named = name_list(others, MOST_NAMED)
            say(f"{folder}: left as it was, being none of this command's: {named}")


_STATUSES = [128 + int(number) for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
"""Exit statuses of a process that a signal has told to end."""


def is_told_to_end(stop: BaseException) -> bool:
    """Whether an exception ends the command because of a signal."""
    return isinstance(stop, KeyboardInterrupt) or (isinstance(stop, SystemExit) and stop.code in _STATUSES)


# What a command has still to do: an interrupted one says it, and one whose output nobody reads goes on for its files.

WRITES = ("save", "plot", "trace", "chart", "record", "result", "html", "params", "pace", "output")
"""The options that name a file or folder which a command writes at its end, by the names of their values."""


_FOLDERS = ("checkpoint", "logs", "state", "saves", "table_folder")
"""The options that name a folder which a command writes to as it goes, by the names of their values."""

_OWN = {
    "checkpoint": Pattern(r"step_[0-9]+|\..*"),
    "logs": Pattern(r"(?:trainer|pserver)_[0-9]+(?:\.log)?|earlier_[0-9]+|\..*"),
    "state": Pattern(r"(?:pserver_[0-9]+\.kept|step_[0-9]+|\.).*"),
}
"""What a command itself keeps in such a folder: patterns of names, in which no other output may be."""


def clash(options: Mapping[str, object], called: Mapping[str, str]) -> str:
    """What is wrong where two of a command's outputs would be one file, or one would be in the way of the other; "" if
    nothing is. `called` has the options' names, by the names of their values.

    Devices, such as /dev/null, take any number of outputs.
    """
    given = {name: options.get(name) for name in (*WRITES, *(_FOLDERS if "resume" in options else ()))}
    paths = {name: path for name, path in given.items() if isinstance(path, str) and path not in ("", "-")}
    real: dict[str, str] = {}
    for name, path in paths.items():
        with suppress(OSError, ValueError):  # names that can't be are told by who writes
            if not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path):
                real[name] = os.path.realpath(path)
    files = [name for name in real if name in WRITES]
    for number, name in enumerate(files):
        for other in files[number + 1 :]:
            if real[name] == real[other] or _is_same(real[name], real[other]):
                return f"{called[name]} and {called[other]} name one file, {paths[other]}: one of them would be lost"
            for inner, outer in ((name, other), (other, name)):
                if real[inner].startswith(os.path.join(real[outer], "")):
                    return (
                        f"{called[inner]} {paths[inner]} is in {paths[outer]}, which {called[outer]} writes as a file"
                    )
        for folder in (each for each in real if each in _FOLDERS):
            below = os.path.join(real[folder], "")
            if real[name] == real[folder] or below.startswith(os.path.join(real[name], "")):
                needs = "it as a folder" if real[name] == real[folder] else f"a folder of this name for {paths[folder]}"
                return f"{called[name]} writes {paths[name]} as a file, and {called[folder]} needs {needs}"
            first = real[name].removeprefix(below).split(os.sep)[0] if real[name].startswith(below) else ""
            if folder in _OWN and _OWN[folder].fullmatch(first):
                return (
                    f"{called[name]} {paths[name]}: names like {first} in {paths[folder]} are those of what "
                    f"{called[folder]} keeps there"
                )
    return ""


def _is_same(one: str, other: str) -> bool:
    """Whether two names are those of one file: a hard link, or a file system that takes no notice of capitals."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


class PendingWork:
    """What the command has still to write, and what else it lacks when it is interrupted."""

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}
        self._checkpoints = ""
        self._prints = self._quiet = False
        self._lacking: list[Callable[[], str]] = []

    def begin(self) -> None:
        """A command begins, of which nothing is known yet."""
        self._paths, self._checkpoints, self._lacking = {}, "", []
        self._prints = self._quiet = False

    def expect(self, options: Mapping[str, object]) -> None:
        """The command is to write what its options name."""
        given = [options.get(name) for name in WRITES]
        self.expect_files(path for path in given if isinstance(path, str))
        folder = options.get("checkpoint") if "resume" in options else None  # else it is one to be read
        self._checkpoints = folder if isinstance(folder, str) else ""
        self._prints = "output" in options and options["output"] in (None, "-") and not options.get("check")

    def expect_files(self, paths: Iterable[str]) -> None:
        """The command is to write these files or folders, besides what it prints (`-`)."""
        self._paths |= dict.fromkeys(path for path in paths if path not in ("", "-"))

    def written(self, path: str) -> None:
        """The command has written a file, or a folder, to its end."""
        self._paths.pop(path, None)
        if path == self._checkpoints:
            self._checkpoints = ""

    @contextmanager
    def lacking(self, sentence: Callable[[], str]) -> Generator[None]:
        """Within the block, the sentence is told of an interrupted command; "" says nothing."""
        self._lacking.append(sentence)
        yield
        self._lacking.remove(sentence)

    def be_quiet(self) -> None:
        """Nothing is told of the command: another one has started it, which does."""
        self._quiet = True

    @property
    def files(self) -> list[str]:
        """The files and folders that are still to be written."""
        return [*self._paths, *filter(None, [self._checkpoints])]

    @property
    def unwritten(self) -> str:
        """A clause about the files and folders that are still to be written, other than checkpoints; "" for none."""
        if not self._paths:
            return ""
        return f"{join_with_and(self._paths)} {'was' if len(self._paths) == 1 else 'were'} not written"

    def tell_of_stop(self, *said: str) -> None:
        """Says on stderr that an error has stopped the command's run: what else is `said`, and what is not written.
        Nothing where there is nothing to say, or another command tells of this one.
        """
        clauses = [*filter(None, (*said, self.unwritten))]
        if clauses and not self._quiet:
            say(f"stopped: {'; '.join(clauses)}")

    def tell_of_interruption(self) -> None:
        """Says on stderr that the command is interrupted, and what it has not done."""
        if self._quiet:
            return
        said = [kept_in(self._checkpoints)] if self._checkpoints else []
        said += filter(None, [sentence() for sentence in self._lacking])
        if self._paths:
            said.append(self.unwritten)
        elif self._prints:
            said.append("the output is not complete")
        say(": ".join(filter(None, ("interrupted", "; ".join(said)))))


PENDING = PendingWork()
"""What the command of this process has still to do."""


def join_with_and(paths: Iterable[str]) -> str:
    """Paths as a list in words: `a`, `a and b`, `a, b and c`."""
    *most, last = paths
    return f"{', '.join(most)} and {last}" if most else last


def checkpoints_in(folder: str) -> dict[str, tuple[int, int]]:
    """The numbered checkpoints in a folder by name, in order, each with what tells it from another of its name."""
    result: dict[str, tuple[int, int]] = {}
    try:
        for _, name in numbered_checkpoints(folder) if folder else ():
            found = os.stat(os.path.join(folder, name))
            result[name] = found.st_ino, found.st_mtime_ns
    except (OSError, ValueError):  # there is no such folder, or it is in use
        return result
    return result


def kept_in(folder: str) -> str:
    """What a run can go on from that saves in a folder."""
    there = [*checkpoints_in(folder)]
    if there:
        return f"--resume {shell_word(folder)} goes on from the last checkpoint, {there[-1]}"
    first = "the first one is saved at the end, or after as many steps as --checkpoint-every says"
    return f"no checkpoint was saved in {folder}; {first}, once every machine has written its part"
