"""`pstranspile grad`: a training program from a forward one: gradients and updates."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pstranspile.ir.diagnostics import quantity, shell_line, warning
from pstranspile.tools.cli.common import add_input, files_read, load_verified, make_parser, write_text
from pstranspile.tools.cli.report import quoting, report

if TYPE_CHECKING:
    from pstranspile.frontends.autodiff.optimizers import Optimizer


def run(arguments: Sequence[str]) -> int:
    """Writes the module with backward and update ops to `-o`, or to stdout."""
    parser = make_parser(
        "grad",
        "Writes a training program from a forward one: the ops that compute gradients, clip and regularise them, and\n"
        "update the parameters, and the optimizer's state in the startup program, as Fluid's minimize makes them.",
        [
            "net.ir --loss mean_0.tmp_0 --optimizer adam --lr 0.001 -o training.ir",
            "net.ir --loss mean_0.tmp_0 --optimizer momentum --lr 0.1 --set momentum=0.9 --regularizer l2:0.0001",
            "net.ir --loss loss --optimizer sgd --lr 0.1 --schedule exponential:decay_steps=1000,decay_rate=0.5",
            "- --loss loss --optimizer adam --clip global_norm:1.0 < net.ir",
        ],
    )
    add_input(parser)
    _add_options(parser)
    options = parser.parse_args(arguments)
    try:
        optimizer = _optimizer(options)
    except ValueError as problem:
        parser.error(str(problem))
    return _write(options, optimizer)


def _write(options: Namespace, optimizer: Optimizer) -> int:
    """Makes the training program and writes it. Raises DiagnosticError or CommandFailure."""
    from pstranspile.frontends.autodiff.minimize import train, trained_already
    from pstranspile.ops.textual import print_module

    module = load_verified(options)
    with quoting(module.source):
        parameters = _names(options.parameters)
        trained_module = train(
            module, options.loss.removeprefix("%"), optimizer, parameters, _names(options.no_grad) or ()
        )
        report(trained_already(module, parameters), [module.source])
        if (options.lr or 0) < 0:
            message = f"the learning rate is {options.lr:g}: below 0 every update makes {options.loss} larger"
            report([warning("learning-rate", message)])
    trained = len(parameters or trained_module.main.parameters())
    what = f"a training program, which trains {quantity(trained, 'parameter')} with {options.optimizer}"
    check = shell_line(["pstranspile", "check", str(options.output), "--pservers", "2", "--trainers", "2"])
    then = f"does it train on a cluster as on one machine?  {check}"
    write_text(options.output, print_module(trained_module), files_read(options), "ir", what, then)
    return 0


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--loss", metavar="VAR", required=True, help="the variable to minimise; it has one element")
    parser.add_argument(
        "--optimizer", metavar="NAME", required=True, help="sgd, momentum, adam, ...; see docs/reference/cli.md"
    )
    parser.add_argument("--lr", metavar="X", type=float, help="the learning rate; default: the optimizer's")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="a setting of the optimizer, such as momentum=0.9 or lazy_mode=true; may be repeated",
    )
    parser.add_argument(
        "--regularizer", metavar="L1|L2:X", help="weight decay for parameters without their own: l2:0.0001"
    )
    parser.add_argument("--clip", metavar="KIND:X", help="clip gradients: global_norm:1.0, norm:1.0, value:0.1")
    parser.add_argument(
        "--schedule",
        metavar="NAME:KEY=VALUE,...",
        action="append",
        default=[],
        help="how the rate changes: exponential, natural_exp, inverse_time, polynomial, piecewise, noam, cosine; "
        "lists are 0.1/0.01; warmup:... after another one leads up to it",
    )
    parser.add_argument("--parameters", metavar="VAR,VAR", help="train these only; default: all that are trainable")
    parser.add_argument("--no-grad", metavar="VAR,VAR", help="variables that let no gradient through")
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write; default: stdout")


def _names(text: str | None) -> list[str] | None:
    return [name.strip().removeprefix("%") for name in text.split(",") if name.strip()] if text else None


def _optimizer(options: Namespace) -> Optimizer:
    from pstranspile.frontends.autodiff import optimizers

    rate = options.lr
    schedule = None
    for text in options.schedule:
        schedule = optimizers.parse_schedule(text, options.lr, schedule)
    clip = optimizers.parse_clip(options.clip) if options.clip else None
    decay = optimizers.parse_decay(options.regularizer) if options.regularizer else None
    return optimizers.parse_optimizer(
        options.optimizer, options.settings, rate if schedule is None else schedule, decay, clip
    )
