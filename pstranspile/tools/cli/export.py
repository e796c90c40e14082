"""`pstranspile export`: programs in formats of other tools: ProgramDescs, ONNX, MLIR, Graphviz, Mermaid."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pstranspile.ir.argument_checks import require_programs
from pstranspile.ir.diagnostics import installing, name_list, quantity, shell_word
from pstranspile.ir.model import MAIN, Location
from pstranspile.tools.cli.common import (
    add_companions,
    begun_with,
    files_read,
    load_input,
    make_parser,
    require_named,
)
from pstranspile.tools.cli.report import quoting, report
from pstranspile.tools.cli.written_files import (
    MOST_NAMED,
    is_file_name,
    output_folder,
    telling,
    telling_of_folder,
)

if TYPE_CHECKING:
    from pstranspile.ir.model import Module, Program

DESCRIPTION = f"""\
Turns a module into files of another format, one per program (main.pb and startup.pb for the usual two). A single
file (onnx, mlir, a drawing of a module of one program) is written into the folder too, or, where the name of -o ends
like it (net.onnx), as this file.

pb: what these can't carry is written beside them, to meta.json, for --meta. dot and mermaid: graphs for looking at, ops
as boxes, variables as edges. mlir: one file, module.mlir, in MLIR's generic form. onnx and inference: the model that
infers what --fetch names (else what fetch ops name) of @main, with the values of its parameters, which --from takes
from what training has left. onnx: main.onnx; an op that ONNX can't express is refused by name; it needs the package
onnx: {installing("onnx")}. inference: __model__ and a file for each parameter, as Fluid's
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
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR|FILE",
        type=_output,
        required=True,
        help="the folder to write to; or, of a single file, its name: net.onnx, net.mlir, net.dot, net.mmd",
    )
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
    require_named(parser, options, "init")
    if options.trained == "":
        parser.error("--from: the name is empty")
    if options.to not in ("onnx", "inference") and (options.fetch or options.init or options.trained):
        parser.error(f"--fetch, --from and --init are about models with values, not --to {options.to}")
    if options.init and options.trained:
        parser.error("--from and --init both say which values the model has; give one")
    _require_form(parser, options)
    return _export(parser, options)


def _export(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Writes what was asked for. Raises DiagnosticError or CommandFailure."""
    module = load_input(options.input, options.startup, options.meta)
    if options.to == "pb":
        _write_descs(module, options)
        return 0
    from pstranspile.compiler.verify import require_blocks

    with quoting(module.source):
        require_blocks(module)
    if options.to == "inference":
        _write_inference(module, options)
        return 0
    if options.to == "onnx":
        what, then = "an ONNX model", _about_values(options)
        _write_files(parser, options, {"main.onnx": lambda: _onnx(module, options)}, what, then)
        return 0
    if options.to == "mlir":
        from pstranspile.frontends.texts import mlir_text

        require_programs(module, module.programs)
        _write_files(parser, options, {"module.mlir": lambda: mlir_text(module).encode("ascii")}, "MLIR", _MLIR)
        return 0
    from pstranspile.frontends.texts import drawings

    made = {name: partial(bytes, data) for name, data in drawings(module, options.to).items()}
    _write_files(parser, options, made, _DRAWN[options.to], _SHOWN_BY[options.to])
    return 0


_FORMS: Mapping[str, tuple[str, ...]] = {
    "pb": (),
    "onnx": (".onnx",),
    "inference": (),
    "mlir": (".mlir",),
    "dot": (".dot", ".gv"),
    "mermaid": (".mmd",),
}
"""The suffix of a single output file, by format. Formats that always have several files are missing."""

_DRAWN = {"dot": "a graph for Graphviz", "mermaid": "a graph for Mermaid"}
"""A description of each format of drawings."""

_SHOWN_BY = {
    "dot": "to see it:  dot -Tsvg {} -o graph.svg",
    "mermaid": "to see it: a block ```mermaid of a Markdown page, or Mermaid's own command:  mmdc -i {} -o graph.svg",
}
"""A sentence on how to view a drawing, by format."""

_MLIR = "to read it:  mlir-opt --allow-unregistered-dialect {}"


def _output(name: str) -> str:
    """The type of `-o`: a folder, or a file."""
    return name if is_file_name(name) else output_folder(name)


def _require_form(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command where `-o` names a file that is not made in this format."""
    path, endings = options.output, _FORMS[options.to]
    if not is_file_name(path) or path.lower().endswith(endings):
        return
    if not endings:
        parser.error(
            f"-o {path} is the name of a file, and --to {options.to} writes several; name a folder ({path}/ is one)"
        )
    parser.error(
        f"-o {path}: the file of --to {options.to} ends in {' or '.join(endings)}; any other name is that of a folder"
        f" ({path}/ too)"
    )


def _write_files(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    files: Mapping[str, Callable[[], bytes]],
    what: str,
    then: str,
) -> None:
    """Writes files into the folder of `-o`, or the only one as the file of this name, and tells of them.

    `then` is the next step, with `{}` for the file. Ends the command where a file is named and there are several.
    Raises DiagnosticError.
    """
    from pstranspile.runtime.files.outputs import require_kinds, require_writable, write_output, write_outputs

    path, names = options.output, [*files]
    kinds = {name: name.rpartition(".")[2] for name in names}
    if is_file_name(path):
        if len(files) != 1:
            there = "the module has no program"
            if files:
                there = f"there are {len(files)} to write: {name_list(names, MOST_NAMED)}"
            parser.error(f"-o {path} is the name of a file, and {there}; name a folder ({path}/ is one)")
        require_writable(path, files_read(options), kinds[names[0]])
        data = files[names[0]]()
        with telling(path, what, *_next(then, path)):
            write_output(path, data)
        return
    require_kinds(path, kinds)
    made = {name: make() for name, make in files.items()}
    what = f"{what}: {name_list(names, MOST_NAMED)}" if names else "nothing, since the module has no program"
    with telling_of_folder(path, names, what, *_next(then if names else "", str(Path(path, *names[:1])))):
        write_outputs(path, made)


def _next(then: str, path: str) -> list[str]:
    return [then.format(shell_word(path))] if then else []


def _about_values(options: argparse.Namespace) -> str:
    """What to say of the values of a model that were taken from nothing trained."""
    if options.trained or options.init:
        return ""
    return "its parameters are those that the startup program makes; --from takes those that training has left"


def _write_descs(module: Module, options: argparse.Namespace) -> None:
    """Writes the ProgramDescs of a module, and what these do not carry. Raises DiagnosticError."""
    import warnings

    from pstranspile.frontends.loading import export
    from pstranspile.frontends.meta import newer_ops
    from pstranspile.runtime.files.outputs import require_kinds, require_own

    report(newer_ops(module.programs.values()), [module.source])
    written = {**{f"{name}.pb": "pb" for name in module.programs}, "meta.json": "meta"}
    require_own(options.output, written, files_read(options))
    require_kinds(options.output, written)
    startup = f" --startup {shell_word(str(Path(options.output, 'startup.pb')))}" if module.startup else ""
    main, meta = (shell_word(str(Path(options.output, name))) for name in ("main.pb", "meta.json"))
    then = [f"back to text:  pstranspile import {main}{startup} --meta {meta}"] if "main.pb" in written else []
    with (
        warnings.catch_warnings(),
        telling_of_folder(options.output, written, f"ProgramDescs: {name_list(written, MOST_NAMED)}", *then),
    ):
        warnings.simplefilter("ignore")  # reported above, with the lines
        export(module, options.output)


def _onnx(module: Module, options: argparse.Namespace) -> bytes:
    """The model of what is fetched of @main. Raises DiagnosticError or CommandFailure."""
    from pstranspile.cluster.checkpoint.inference import asked_for, inference_program, onnx_model

    with quoting(module.source):
        require_programs(module, module.programs.keys() | {MAIN})
        cut = inference_program(module.main, *asked_for(module.main, options.fetch)).program
        return onnx_model(module.main, _values(module, cut, options), options.fetch)


def _write_inference(module: Module, options: argparse.Namespace) -> None:
    """Writes the inference model of what is fetched of @main. Raises DiagnosticError or CommandFailure."""
    from pstranspile.cluster.checkpoint.inference import MODEL, asked_for, inference_program, write_model
    from pstranspile.cluster.checkpoint.manifest import MANIFEST
    from pstranspile.frontends.meta import newer_ops
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
            message = "it is a checkpoint, and export writes into none; name another folder"
            raise_errors([error("output-foreign", message, Location(options.output))])
        require_kinds(options.output, {**dict.fromkeys(names, "values"), MODEL: "pb"})
        report(newer_ops([model.program]), [module.source])
        values = {name: values[name] for name in names}
        what = f"an inference model: {MODEL}, and a file for each of {quantity(len(names), 'parameter')}"
        with telling_of_folder(options.output, [MODEL, *names], what, *_next(_about_values(options), "")):
            write_model(options.output, model, values)


def _values(module: Module, model: Program, options: argparse.Namespace) -> Mapping[str, Any]:
    """The values of the variables that a model keeps. Raises DiagnosticError."""
    from pstranspile.cluster.checkpoint.inference import served_values
    from pstranspile.runtime.files.variables import persistable_names

    if options.trained:
        from pstranspile.runtime.run.files import not_finite

        served = served_values(options.trained, module.main, persistable_names(model))
        report(not_finite(served, module.main, options.trained))
        return served
    from pstranspile.runtime.run.prepared import run as run_program
    from pstranspile.runtime.run.scope import Scope

    scope, values = Scope(), begun_with(options.init, module.main, module.startup, start=module.start)
    if module.startup is not None:
        run_program(module.startup, {}, (), scope)
    for name, value in values.items():
        scope[name] = value
    return scope
