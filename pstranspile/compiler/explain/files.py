"""A compiled job as files: what `compile -o` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.explain.record import record
from pstranspile.compiler.plan.plan import plan_json
from pstranspile.frontends.json_text import json_text
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module
from pstranspile.ops.textual import print_module


def files_of(
    result: Compiled, emit: str = "ir", tell: Callable[[str, int, int], object] = lambda _what, _done, _of: None
) -> Iterator[tuple[str, bytes]]:
    """Name and contents of every file: text (`ir`) or ProgramDescs (`pb`), and the plan. `tell` gets the progress."""
    from pstranspile.frontends.meta import meta_of
    from pstranspile.frontends.program_desc import program_to_bytes

    roles = result.roles()
    for number, (name, role) in enumerate(roles.items(), start=1):
        tell("texts of machines", number, len(roles))
        if emit == "pb":
            yield f"{name}.main.pb", program_to_bytes(role.main)
            yield f"{name}.startup.pb", program_to_bytes(role.startup)
            written = Module(FrozenMap({MAIN: role.main, STARTUP: role.startup}))
            yield f"{name}.meta.json", json_text(meta_of(written)).encode("utf-8")
        else:
            yield f"{name}.ir", print_module(role.module).encode("utf-8")
    plan = plan_json(result.plan, result.fingerprint, result.distributed_vars)
    yield "plan.json", json_text({**plan, **record(result)}).encode("utf-8")
