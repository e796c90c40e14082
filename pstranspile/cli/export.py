"""`pstranspile export`: text as serialized ProgramDescs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pstranspile.cli.common import add_companions, load_input, make_parser

if TYPE_CHECKING:
    from pstranspile.ir.model import Module


def run(arguments: Sequence[str]) -> int:
    """Writes every program of the module to a file `<name>.pb` of the output folder, and `meta.json`."""
    parser = make_parser(
        "export",
        "Turns a module into serialized programs of another format, one file per program (main.pb and startup.pb\n"
        "for the usual two). What these can't carry is written beside them, to meta.json, for --meta.",
        ["net.ir --to pb -o out"],
    )
    parser.add_argument("input", metavar="PROG.ir", help="the module, or - for text on stdin")
    add_companions(parser)
    parser.add_argument("--to", choices=["pb"], required=True, help="the format; pb: ProgramDesc, as Fluid reads it")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write to")
    options = parser.parse_args(arguments)
    from pstranspile.cli.json_text import json_text
    from pstranspile.interop.program_desc import program_to_bytes
    from pstranspile.outputs import write_outputs

    module = load_input(options.input, options.startup, options.meta)
    files = {f"{name}.pb": program_to_bytes(program) for name, program in module.programs.items()}
    files["meta.json"] = json_text(meta_of(module)).encode("utf-8")
    write_outputs(options.output, files)
    return 0


def meta_of(module: Module) -> dict[str, Any]:
    """What ProgramDescs do not carry of a module, with the keys of a `--meta` file.

    The seed is that of `@main`, or of the first program where there is none of that name.
    """
    from pstranspile.ir.model import MAIN

    programs = module.programs
    first = programs.get(MAIN) or next(iter(programs.values()), None)
    params = {
        var.name: {"name": var.name, **var.parameter._asdict()}
        for program in programs.values()
        for var in program.parameters()
        if var.parameter is not None
    }
    meta: dict[str, Any] = {"random_seed": first.random_seed if first else 0, "params": [*params.values()]}
    if module.startup is not None:
        meta["startup_parameter_order"] = [var.name for var in module.startup.parameters()]
    return meta
