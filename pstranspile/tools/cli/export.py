"""`pstranspile export`: programs in formats of other tools: ProgramDescs, ONNX, MLIR, Graphviz, Mermaid."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.ir.model import MAIN, Location
from pstranspile.ir.required import require_programs
from pstranspile.tools.cli.common import (
    add_companions,
    begun_with,
    files_read,
    folder_name,
    load_input,
    make_parser,
    refuse_empty,
)
from pstranspile.tools.cli.report import quoting, report

if TYPE_CHECKING:
    from pstranspile.ir.model import Module, Program

DESCRIPTION = """\
Turns a module into files of another format, one per program (main.pb and startup.pb for the usual two).

pb: what these can't carry is written beside them, to meta.json, for --meta. dot and mermaid: graphs for looking at, ops
as boxes, variables as edges. mlir: one file, module.mlir, in MLIR's generic form. onnx and inference: the model that
infers what --fetch names (else what fetch ops name) of @main, with the values of its parameters, which --from takes
from what training has left. onnx: main.onnx; an op that ONNX can't express is refused by name; it needs the package
onnx: pip install 'pstranspile[onnx]'. inference: __model__ and a file for each parameter, as Fluid's
save_inference_model writes them."""


def run(arguments: Sequence[str]) -> int:
    """Writes the files to the output folder."""
    parser = make_parser(
        "export",
        DESCRIPTION,
        [
            "net.ir --to pb -o out",
            "net.ir --to dot -o drawn",
            "net.ir --to onnx --fetch softmax_0.tmp_0 --from kept -o model",
            "net.ir --to inference --fetch softmax_0.tmp_0 --from trained.npz -o model",
        ],
    )
    parser.add_argument("input", metavar="PROG.ir", help="the module, or - for text on stdin")
    add_companions(parser)
    parser.add_argument(
        "--to",
        choices=["pb", "onnx", "inference", "mlir", "dot", "mermaid"],
        required=True,
        help="the format; pb: ProgramDesc, as Fluid reads it; onnx: ONNX; inference: an inference model of Fluid; "
        "mlir: MLIR's generic form; dot: a graph for Graphviz; mermaid: one for Mermaid",
    )
    parser.add_argument("-o", "--output", metavar="DIR", type=folder_name, required=True, help="the folder to write to")
    group = parser.add_argument_group("onnx and inference")
    group.add_argument(
        "--fetch",
        metavar="VAR",
        action="append",
        default=[],
        help="an output of the model; may be repeated. The rest of the program is cut away, and set to testing",
    )
    group.add_argument(
        "--from",
        metavar="CHECKPOINT|FILE.npz|DIR",
        dest="trained",
        help="the values of all variables that the model needs: a checkpoint (the newest in a folder), what --save "
        "wrote, arrays by name, or what Fluid's save_persistables wrote",
    )
    group.add_argument(
        "--init",
        metavar="FILE.npz|DIR",
        help="in place of --from: values of some variables, as for run; the others are those that the startup program "
        "makes, all of them without --init",
    )
    options = parser.parse_args(arguments)
    refuse_empty(parser, options, "init")
    if options.trained == "":
        parser.error("--from: the name is empty")
    if options.to not in ("onnx", "inference") and (options.fetch or options.init or options.trained):
        parser.error(f"--fetch, --from and --init are about models with values, not --to {options.to}")
    if options.init and options.trained:
        parser.error("--from and --init both say which values the model has; give one")
    module = load_input(options.input, options.startup, options.meta)
    if options.to == "pb":
        import warnings

        from pstranspile.frontends.exporting import export
        from pstranspile.frontends.newer import newer_ops
        from pstranspile.runtime.files.outputs import require_kinds, require_own

        report(newer_ops(module.programs.values()), [module.source])
        written = {**{f"{name}.pb": "pb" for name in module.programs}, "meta.json": "json"}
        require_own(options.output, written, files_read(options))
        require_kinds(options.output, written)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reported above, with the lines
            export(module, options.output)
        return 0
    from pstranspile.compiler.verify import require_blocks
    from pstranspile.runtime.files.outputs import require_kinds, write_outputs

    with quoting(module.source):
        require_blocks(module)
    if options.to == "onnx":
        require_kinds(options.output, {"main.onnx": "onnx"})
        write_outputs(options.output, {"main.onnx": _onnx(module, options)})
    elif options.to == "inference":
        _write_inference(module, options)
    elif options.to == "mlir":
        from pstranspile.frontends.mlir import mlir_text

        require_programs(module, module.programs)
        require_kinds(options.output, {"module.mlir": "mlir"})
        write_outputs(options.output, {"module.mlir": mlir_text(module).encode("ascii")})
    else:
        from pstranspile.frontends.drawing import drawings

        files = drawings(module, options.to)
        require_kinds(options.output, {name: name.rpartition(".")[2] for name in files})
        write_outputs(options.output, files)
    return 0


def _onnx(module: Module, options: argparse.Namespace) -> bytes:
    """The model of what is fetched of @main. Raises DiagnosticError or Reported."""
    from pstranspile.cluster.checkpoint.inference import asked_for, inference_program, onnx_model

    with quoting(module.source):
        require_programs(module, module.programs.keys() | {MAIN})
        cut = inference_program(module.main, *asked_for(module.main, options.fetch)).program
        return onnx_model(module.main, _values(module, cut, options), options.fetch)


def _write_inference(module: Module, options: argparse.Namespace) -> None:
    """Writes the inference model of what is fetched of @main. Raises DiagnosticError or Reported."""
    from pstranspile.cluster.checkpoint.inference import MODEL, asked_for, inference_program, write_model
    from pstranspile.cluster.checkpoint.manifest import MANIFEST
    from pstranspile.ir.diagnostics import error, raise_errors
    from pstranspile.runtime.files.outputs import require_kinds
    from pstranspile.runtime.files.variables import persistable_names

    with quoting(module.source):
        require_programs(module, module.programs.keys() | {MAIN})
        model = inference_program(module.main, *asked_for(module.main, options.fetch))
        values = _values(module, model.program, options)
        names = persistable_names(model.program)
        raise_errors(error("inference-program", f"{name} has no value") for name in names if values.get(name) is None)
        if (Path(options.output) / MANIFEST).exists():
            message = "it is a checkpoint, which nothing is written into; name another folder"
            raise_errors([error("output-foreign", message, Location(options.output))])
        require_kinds(options.output, {**dict.fromkeys(names, "values"), MODEL: "pb"})
        write_model(options.output, model, {name: values[name] for name in names})


def _values(module: Module, model: Program, options: argparse.Namespace) -> Mapping[str, Any]:
    """The values of the variables that a model keeps. Raises DiagnosticError."""
    from pstranspile.cluster.checkpoint.starting import served_values
    from pstranspile.runtime.files.variables import persistable_names

    if options.trained:
        return served_values(options.trained, module.main, persistable_names(model))
    from pstranspile.runtime.run.api import run as run_program
    from pstranspile.runtime.run.scope import Scope

    scope, values = Scope(), begun_with(options.init, module.main, module.startup)
    if module.startup is not None:
        run_program(module.startup, {}, (), scope)
    for name, value in values.items():
        scope[name] = value
    return scope
