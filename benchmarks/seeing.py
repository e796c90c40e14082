"""How long editors wait for findings after a keystroke, and how long a report of a large job takes and how large it is.

    python benchmarks/seeing.py [--layers 600] [--servers 100]

Keystrokes are read as the language server reads them: one that makes a statement wrong, one that makes it right again,
one that exchanges an op, ones that add or take out lines, one that begins a block. The report is of the same program,
of two trainers. Every figure is the best of several runs. Beside it stands what parsing the whole text takes, measured
in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from programs import mlp

from pstranspile.compiler.compile import compile
from pstranspile.compiler.explain import of_compiled
from pstranspile.compiler.job import Job
from pstranspile.ops.textual import parse, print_module
from pstranspile.tools.lsp.reading import read
from pstranspile.tools.report import REPORT, page
from pstranspile.tools.report.data import report_data


def best(run: Callable[[], object], times: int = 5) -> float:
    """The shortest of several runs, in seconds of this process, which has one thread."""
    result: list[float] = []
    for _ in range(times):
        start = time.process_time()
        run()
        result.append(time.process_time() - start)
    return min(result)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=600, help="fc layers, of 18 ops each (default: 600)")
    parser.add_argument("--servers", type=int, default=100)
    options = parser.parse_args()
    module = mlp(options.layers)
    text = print_module(module)
    ops = sum(len(block.ops) for program in module.programs.values() for block in program.blocks)
    whole = best(lambda: parse(text, "net.ir"))
    print(f"{ops} ops, {len(text) / 1e6:.1f} MB of text; parsing all of it {whole * 1e3:.0f} ms")
    before = read(text, "net.ir")
    wrong = text.replace("relu(X=%", "relu(X=%%", 1)
    keystrokes = {
        "a statement is wrong": wrong,
        "it is right again": text,
        "another op": text.replace("relu(", "tanh(", 1),
        "a line more": text.replace("    relu(", "\n    relu(", 1),
        "a line more at the top": text.replace("    param", "\n    param", 1),
        "an op less": text.replace("    mean(", "    # mean(", 1),
        "a block begins": text.replace("    relu(", "  block ^1 in ^0 {\n    relu(", 1),
    }
    for what, typed in keystrokes.items():
        last = read(wrong, "net.ir", before) if typed is text else before
        taken = best(lambda typed=typed, last=last: read(typed, "net.ir", last))
        print(f"findings after a keystroke, {what}: {taken * 1e3:.0f} ms, {taken / whole:.1f} of parsing")
    job = Job(pservers=options.servers, trainers=2)

    def report() -> bytes:
        return page("net", report_data(of_compiled(compile(module, job)), "net.ir", module), REPORT)

    size = len(report())
    print(f"a report of {options.servers} servers: {best(report, 3):.1f} s with its compile, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
