"""`pstranspile export`: text as serialized ProgramDescs."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.cli.common import add_companions, folder_name, load_input, make_parser


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
    parser.add_argument("-o", "--output", metavar="DIR", type=folder_name, required=True, help="the folder to write to")
    options = parser.parse_args(arguments)
    from pstranspile.interop.exporting import export

    export(load_input(options.input, options.startup, options.meta), options.output)
    return 0
