"""`pstranspile import`: a serialized ProgramDesc as text."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.cli.common import add_companions, load_input, make_parser, write_text


def run(arguments: Sequence[str]) -> int:
    """Writes the text of the input to `-o`, or to stdout."""
    parser = make_parser(
        "import",
        "Turns a serialized ProgramDesc (main.pb, __model__, .pdmodel) into text.",
        ["main.pb --startup startup.pb -o net.ir", "__model__"],
    )
    parser.add_argument("input", metavar="MAIN", help="the serialized main program")
    add_companions(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write; default: stdout")
    parser.add_argument(
        "--call-stacks",
        action="store_true",
        help="keep all that the file has: the whole call stack of every op, and the order of the declarations; "
        "by default an op keeps the line of your script that made it, and declarations are sorted",
    )
    options = parser.parse_args(arguments)
    from pstranspile.ops.textual import print_module

    text = print_module(load_input(options.input, options.startup, options.meta, call_stacks=options.call_stacks))
    write_text(options.output, text)
    return 0
