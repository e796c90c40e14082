"""`pstranspile export`: programs in formats of other tools: ProgramDescs, Graphviz, Mermaid."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.cli.common import add_companions, folder_name, load_input, make_parser


def run(arguments: Sequence[str]) -> int:
    """Writes every program of the module to a file of the output folder; beside `<name>.pb` also `meta.json`."""
    parser = make_parser(
        "export",
        "Turns a module into serialized programs of another format, one file per program (main.pb and startup.pb\n"
        "for the usual two). What these can't carry is written beside them, to meta.json, for --meta. Graphs are for\n"
        "looking at: ops as boxes, variables as edges.",
        ["net.ir --to pb -o out", "net.ir --to dot -o drawn"],
    )
    parser.add_argument("input", metavar="PROG.ir", help="the module, or - for text on stdin")
    add_companions(parser)
    parser.add_argument(
        "--to",
        choices=["pb", "dot", "mermaid"],
        required=True,
        help="the format; pb: ProgramDesc, as Fluid reads it; dot: a graph for Graphviz; mermaid: one for Mermaid",
    )
    parser.add_argument("-o", "--output", metavar="DIR", type=folder_name, required=True, help="the folder to write to")
    options = parser.parse_args(arguments)
    module = load_input(options.input, options.startup, options.meta)
    if options.to == "pb":
        from pstranspile.interop.exporting import export

        export(module, options.output)
    else:
        from pstranspile.interop.drawing import drawings
        from pstranspile.interop.outputs import write_outputs

        write_outputs(options.output, drawings(module, options.to))
    return 0
