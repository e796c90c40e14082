"""What `--print-after` and `--timing` show of a compile while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from pstranspile.ir.model import Program


class Watch:
    """An observer of passes: prints some results on stderr, measures the time, and reports the progress."""

    def __init__(self, print_after: frozenset[str], tell: Callable[[str, int, int], object] | None = None):
        self._print_after = print_after
        self._tell = None if print_after else tell
        self._trainers = self._servers = 0
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}

    def __call__(self, name: str, result: object, seconds: float) -> None:
        """Told by the compiler that the pass `name` gave `result` after `seconds`."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._tell is not None:
            self._count(name, result, self._tell)
        if name in self._print_after:
            print(f"# after {name}\n{shown(result)}", file=sys.stderr)

    def _count(self, name: str, result: object, tell: Callable[[str, int, int], object]) -> None:
        """Reports how many machines' programs are made, once the plan has the number of machines."""
        from pstranspile.compiler.plan.plan import Plan

        if isinstance(result, Plan):
            self._trainers, self._servers = result.trainers, len(result.pservers)
        if name == "emit-trainers":
            tell("programs of trainers", self._calls[name], self._trainers)
        elif name == "emit-pservers":
            tell("programs of servers", self._calls[name], self._servers)

    def table(self) -> str:
        """Seconds and calls of every pass, in the order in which they first ran, and the sum."""
        width = max(map(len, [*self._seconds, "total"]))
        rows = [(name, seconds, f"{self._calls[name]:>7}") for name, seconds in self._seconds.items()]
        rows.append(("total", sum(self._seconds.values()), ""))
        lines = [f"{name:<{width}}  {seconds:>10.6f}{calls}".rstrip() for name, seconds, calls in rows]
        return "\n".join([f"{'pass':<{width}}  {'seconds':>10}  calls", *lines])


def shown(result: object) -> str:
    """The result of a pass as text: programs as they are written, other values field by field."""
    if isinstance(result, Program):
        from pstranspile.ops.textual import print_program

        return print_program(result)
    programs = [part for part in _parts(result) if isinstance(part, Program)]
    if programs:
        return "\n".join(map(shown, programs))
    from pprint import pformat

    return pformat(result, width=110, sort_dicts=False)


def _parts(result: object) -> Iterable[object]:
    fields = getattr(result, "_fields", None) or getattr(result, "__dataclass_fields__", ())
    return [getattr(result, name) for name in fields]
