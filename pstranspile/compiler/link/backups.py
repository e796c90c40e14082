"""Delay compensation: a server keeps, for each trainer, a copy of every slice as that trainer saw it last.

The server's loop refreshes the copies under the names `<slice>.trainer_<i>_bak` when trainer i fetches the slice, so
these names are part of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator

from pstranspile.compiler.link.base import described, finding, names_text, same_type
from pstranspile.compiler.link.machines import Server
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op
from pstranspile.ir.types import VarKind


def check_backups(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """A slice that is updated with a dense gradient has a copy per trainer, filled at start-up, for its block."""
    compensated = server.op.attrs.get("dc_asgd") is True
    chosen: dict[str, Op] = {}
    blocks = server.role.main.blocks
    for index in server.blocks if compensated else ():
        for op in blocks[index].ops:
            if op.type == "ref_by_trainer_id":
                chosen.update(dict.fromkeys(op.inputs.get("X", ()), op))
    if not compensated:
        for name, (_, op) in server.outside.items():
            if op.type == "ref_by_trainer_id":
                yield finding(
                    "link-backup", server.role, op, f"%{name} is chosen by trainer, but dc_asgd is not set", name
                )
        return
    filled = {
        name: op.input("X")
        for op in server.role.startup.main_block.ops
        if op.type == "assign"
        for name in op.outputs.get("Out", ())
    }
    sparse = {
        parameter
        for gradient, parameter in server.feeds.items()
        if (var := server.vars.get(gradient)) is not None and var.kind is VarKind.SELECTED_ROWS
    }
    for parameter, op in server.parameters.items():
        wanted = tuple(f"{parameter}.trainer_{number}_bak" for number in range(trainers))
        ref = chosen.get(wanted[0]) or next((chosen[name] for name in wanted if name in chosen), None)
        if ref is None and parameter in sparse:
            continue  # compensation is of dense gradients only
        if ref is None or ref.inputs.get("X") != wanted:
            shown = names_text(ref.inputs.get("X", ())) if ref is not None else "nothing"
            message = f"the copies of %{parameter} are {shown}, must be {names_text(wanted)}"
            yield finding("link-backup", server.role, ref or op, message, parameter)
        for name in wanted:
            if filled.get(name) != parameter:
                message = f"%{name} is not filled with %{parameter} at start-up"
                yield finding("link-backup", server.role, ref or op, message, name)
            elif not same_type(server.vars.get(name), server.vars.get(parameter)):
                slot, backup = described(server.vars.get(name)), described(server.vars.get(parameter))
                yield finding("link-backup", server.role, ref or op, f"%{name} is {slot}, %{parameter} {backup}", name)
