"""`pstranspile import`: a serialized ProgramDesc, an ONNX model or a function of a Python file as text."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pstranspile.ir.diagnostics import installing, quantity, shell_line, warning
from pstranspile.ir.model import MAIN, Location, Module
from pstranspile.ops import is_optimizer
from pstranspile.tools.cli.common import add_companions, files_read, load_input, make_parser, write_text
from pstranspile.tools.cli.report import report
from pstranspile.tools.cli.written_files import telling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pstranspile.frontends.onnx.importing import ImportedModel

DESCRIPTION = f"""\
Turns a serialized ProgramDesc (main.pb, __model__, .pdmodel), an ONNX model, or the program that a function of a
Python file gives (FILE.py:NAME) into text.

The parameters of an ONNX model, or of one that pstranspile.torch has traced, go to the file of --params, for --init of
run and check; the startup program has them NaN. docs/guides/onnx.md shows how to train an ONNX model. That needs the
package onnx: {installing("onnx")}."""


def run(arguments: Sequence[str]) -> int:
    """Writes the text of the input to `-o`, or to stdout."""
    parser = make_parser(
        "import",
        DESCRIPTION,
        [
            "main.pb --startup startup.pb -o net.ir",
            "__model__",
            "model.onnx -o net.ir --params net.npz",
            "train.py:training -o net.ir --params net.npz",
        ],
    )
    parser.add_argument("input", metavar="MAIN", help="the serialized main program, the ONNX model, or FILE.py:NAME")
    add_companions(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write; default: stdout")
    parser.add_argument(
        "--call-stacks",
        action="store_true",
        help="keep all that the file has: the whole call stack of every op, and the order of the declarations; "
        "by default an op keeps the line of your script that made it, and declarations are sorted",
    )
    parser.add_argument("--params", metavar="FILE.npz", help="the file to write the parameters of a model to, by name")
    options = parser.parse_args(arguments)
    from pstranspile.runtime.files.outputs import require_writable

    if options.output not in (None, "-"):
        require_writable(options.output, files_read(options), "ir")
    if options.params:
        require_writable(options.params, files_read(options), "npz")

    return _import(parser, options)


def _import(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Writes the text, and the parameters of a model that holds them. Raises DiagnosticError or CommandFailure."""
    from pstranspile.frontends.loading import of_python, only_initialises
    from pstranspile.frontends.python_places import with_script_places
    from pstranspile.ops.textual import print_module

    imported = _from_onnx(parser, options)
    module = imported.module if imported is not None else None
    init = ["--init", options.params] if options.params else []
    then: list[str] = []
    if module is None and of_python(options.input) is not None:
        module = load_input(options.input, options.startup, options.meta)
        _write_values(parser, options, module.start, "start value")
        module = with_script_places(module, ".py")
        command = shell_line(["pstranspile", "run", str(options.output), *init, "--feed", "FILE.npz"])
        then.append(f"what does it compute?  {command}")
    elif module is None:
        if options.params:
            parser.error("--params is about models, which hold their parameters; a ProgramDesc holds none")
        module = load_input(options.input, options.startup, options.meta, call_stacks=options.call_stacks)
        if module.programs.keys() == {MAIN} and module.main.main_block.ops and only_initialises(module.main):
            message = "all its ops initialise variables, as in a startup program, which --startup takes beside @main"
            report([warning("input-startup", message, Location(options.input))])
        elif module.source is None and module.startup is None and _trains(module):
            report([warning("no-program", _NO_STARTUP, Location(options.input))])
    names = sorted(module.programs, key=lambda name: (name != MAIN, name))
    what = f"the text of {' and '.join(f'@{name}' for name in names)}"
    command = shell_line(["pstranspile", "verify", str(options.output)])
    then.insert(0, f"is it well formed?  {command}")
    if imported is not None:
        fetches = [part for name in imported.outputs for part in ("--fetch", name)]
        command = shell_line(["pstranspile", "run", str(options.output), *init, *fetches, "--feed", "FILE.npz"])
        then.append(f"what does it compute?  {command}")
    write_text(options.output, print_module(module), files_read(options), "ir", what, *then)
    return 0


_NO_STARTUP = (
    "without the start-up program, which --startup takes, the text has no first values of parameters and state: run "
    "needs --init, and compile and check refuse it"
)


def _trains(module: Module) -> bool:
    return any(is_optimizer(op) for block in module.main.blocks for op in block.ops)


def _from_onnx(parser: argparse.ArgumentParser, options: argparse.Namespace) -> ImportedModel | None:
    """What an ONNX model is imported as, whose parameters are written; None for any other input."""
    from pstranspile.frontends.loading import is_onnx, of_python, read_bytes

    if options.input == "-" or of_python(options.input) is not None:
        return None
    data = read_bytes(options.input)
    if not is_onnx(data):
        return None
    if options.startup or options.meta or options.call_stacks:
        parser.error("--startup, --meta and --call-stacks are about ProgramDescs; this is an ONNX model")
    from pstranspile.frontends.onnx.importing import from_onnx

    imported = from_onnx(data, options.input, os.path.dirname(options.input) or ".")
    _write_values(parser, options, imported.values, "parameter")
    return imported


def _write_values(
    parser: argparse.ArgumentParser, options: argparse.Namespace, values: Mapping[str, NDArray[Any]], noun: str
) -> None:
    """Writes the values of a model to the file of `--params`; wrong usage if there are some and no such file."""
    value_count = quantity(len(values), noun)
    if values and not options.params:
        parser.error(f"the model holds {value_count}; --params FILE.npz says where they go")
    if options.params:
        if not values:
            parser.error(f"--params is about models, which hold their parameters; {options.input} gives none")
        from pstranspile.runtime.run.files import write_arrays

        with telling(options.params, f"the model's {value_count}, for --init of run and check"):
            write_arrays(options.params, values)
