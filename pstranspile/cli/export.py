"""`pstranspile export`: programs in formats of other tools: ProgramDescs, ONNX, MLIR, Graphviz, Mermaid."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pstranspile.cli.common import add_companions, folder_name, load_input, make_parser
from pstranspile.cli.report import quoting
from pstranspile.ir.model import MAIN
from pstranspile.ir.required import require_programs

if TYPE_CHECKING:
    from pstranspile.ir.model import Module

DESCRIPTION = """\
Turns a module into files of another format, one per program (main.pb and startup.pb for the usual two).

pb: what these can't carry is written beside them, to meta.json, for --meta. dot and mermaid: graphs for looking at, ops
as boxes, variables as edges. mlir: one file, module.mlir, in MLIR's generic form. onnx: the model that infers what
--fetch names (else what fetch ops name) of @main, with the values of its parameters; an op that ONNX can't express is
refused by name. It needs the package onnx: pip install 'pstranspile[onnx]'."""


def run(arguments: Sequence[str]) -> int:
    """Writes the files to the output folder."""
    parser = make_parser(
        "export",
        DESCRIPTION,
        [
            "net.ir --to pb -o out",
            "net.ir --to dot -o drawn",
            "net.ir --to onnx --fetch softmax_0.tmp_0 --init trained.npz -o model",
        ],
    )
    parser.add_argument("input", metavar="PROG.ir", help="the module, or - for text on stdin")
    add_companions(parser)
    parser.add_argument(
        "--to",
        choices=["pb", "onnx", "mlir", "dot", "mermaid"],
        required=True,
        help="the format; pb: ProgramDesc, as Fluid reads it; onnx: ONNX; mlir: MLIR's generic form; dot: a graph for "
        "Graphviz; mermaid: one for Mermaid",
    )
    parser.add_argument("-o", "--output", metavar="DIR", type=folder_name, required=True, help="the folder to write to")
    group = parser.add_argument_group("onnx")
    group.add_argument(
        "--fetch",
        metavar="VAR",
        action="append",
        default=[],
        help="an output of the model; may be repeated. The rest of the program is cut away, and set to testing",
    )
    group.add_argument(
        "--init",
        metavar="FILE.npz|DIR",
        help="the values of persistable variables, as for run (default: those that the startup program makes)",
    )
    options = parser.parse_args(arguments)
    if options.to != "onnx" and (options.fetch or options.init):
        parser.error(f"--fetch and --init are about ONNX models, not --to {options.to}")
    module = load_input(options.input, options.startup, options.meta)
    if options.to == "pb":
        from pstranspile.interop.exporting import export

        export(module, options.output)
        return 0
    from pstranspile.interop.outputs import write_outputs
    from pstranspile.verify import require_blocks

    with quoting(module.source):
        require_blocks(module)
    if options.to == "onnx":
        write_outputs(options.output, {"main.onnx": _onnx(module, options)})
    elif options.to == "mlir":
        from pstranspile.interop.mlir import mlir_text

        require_programs(module, module.programs)
        write_outputs(options.output, {"module.mlir": mlir_text(module).encode("ascii")})
    else:
        from pstranspile.interop.drawing import drawings

        write_outputs(options.output, drawings(module, options.to))
    return 0


def _onnx(module: Module, options: argparse.Namespace) -> bytes:
    """The model of what is fetched of @main. Raises DiagnosticError or Reported."""
    from pstranspile.checkpoint.onnx_model import onnx_model
    from pstranspile.run.api import run as run_program
    from pstranspile.run.files import initial_values
    from pstranspile.run.scope import Scope

    scope = Scope()
    with quoting(module.source):
        require_programs(module, module.programs.keys() | {MAIN})
        values = initial_values(options.init, module.main, module.startup)
        if module.startup is not None:
            run_program(module.startup, {}, (), scope)
        for name, value in values.items():
            scope[name] = value
        return onnx_model(module.main, scope, options.fetch)
