"""Call stacks, which Fluid keeps with every op: the user's own frame of a stack, and a stack of that frame."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from pathlib import PurePosixPath, PureWindowsPath

from pstranspile.ir.attributes import Strings
from pstranspile.ir.model import Block, Location, Module, Op

CALL_STACK = "op_callstack"
"""The attribute that holds the frames of a stack, each as Python's `traceback` writes it."""

_FRAME = re.compile(r'\s*File "([^\n]+)", line ([0-9]{1,9})(?:, in [^\n]*)?(?:\n|$)').match
_PADDLE = re.compile(r"(.*[/\\]paddle[/\\])fluid[/\\]framework\.pyc?").fullmatch
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]").match
_LIBRARY = re.compile(
    r".*[/\\]lib[/\\]python[0-9.]+[/\\](?!(?:site|dist)-packages[/\\])"
    r"|.*[/\\](?:site|dist)-packages[/\\]decorator\.py$"
).match
_GENERATED = ("<decorator-gen-", "<string>", "<frozen ")
"""How the names of files that Python makes up begin; `<stdin>` and a cell of a notebook are the user's own."""


def user_frame(stack: Strings) -> Location | None:
    """The frame of a call stack that is the user's own: the innermost outside Paddle and Python's own library.

    Where there is none it is the outermost frame that stands in a file. None for what holds no frames at all.
    Frames may stand in either order: Fluid 1.8 writes the innermost first.
    """
    frames = [(result[1], int(result[2])) for text in stack if (result := _FRAME(text))]
    frames = [frame for frame in frames if not frame[0].startswith(_GENERATED) and frame[1] > 0]
    if not frames:
        return None
    roots = [result[1] for file, _ in frames if (result := _PADDLE(file))]
    if not roots:
        roots = [result[0] + "paddle" for file, _ in frames if (result := _INSTALLED(file))]

    def is_paddle(file: str) -> bool:
        return any(file.startswith(root) for root in roots)

    if not is_paddle(frames[0][0]):
        frames.reverse()  # now the innermost is first
    own = [frame for frame in frames if not is_paddle(frame[0]) and not _LIBRARY(frame[0])]
    return Location(*(own[0] if own else frames[-1]))


def stack_of(script: Location) -> Strings:
    """The call stack of one frame, without a function: all that is known of an op by its place in a script."""
    return Strings([f'  File "{script.file}", line {script.line}\n'])


def with_short_scripts(module: Module) -> Module:
    """The module with the absolute names of scripts shortened: from the folder that all are in, or that of packages.

    Only ops of serialized programs are changed; places that a text states stay.
    """
    files = {s.file for s in _scripts(module)}
    absolute = sorted(file for file in files if PurePosixPath(file).is_absolute() or PureWindowsPath(file).drive)
    short = _shortened(absolute)
    if not short:
        return module
    known: dict[Location, Location] = {}

    def shortened(op: Op) -> Op:
        origin = op.origin
        location = origin.location if origin is not None else None
        script = location.script if location is not None and not location.line else None
        if origin is None or location is None or script is None:
            return op
        made = known.get(location)
        if made is None:
            made = known[location] = location._replace(script=script._replace(file=short.get(script.file, script.file)))
        return op._replace(origin=origin._replace(location=made))

    def of_block(block: Block) -> Block:
        return block._replace(ops=tuple(map(shortened, block.ops)))

    programs = module.programs.items()
    return module.with_programs({name: p._replace(blocks=tuple(map(of_block, p.blocks))) for name, p in programs})


def _scripts(module: Module) -> Iterable[Location]:
    for program in module.programs.values():
        for block in program.blocks:
            for op in block.ops:
                location = op.location
                if location is not None and location.script is not None and not location.line:
                    yield location.script


def _shortened(files: list[str]) -> dict[str, str]:
    """Shorter names of files with absolute names, as far as none then has the name of another."""
    short = {file: file[len(result[0]) :] for file in files if (result := _INSTALLED(file))}
    rest = [file for file in files if file not in short]
    folders = [file.replace("\\", "/").split("/")[:-1] for file in rest]
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*folders, strict=False))
    common = sum(1 for _ in alike)
    if common > 1:
        short.update({file: file.replace("\\", "/").split("/", common)[-1] for file in rest})
    return short if len(set(short.values())) == len(short) else {}
