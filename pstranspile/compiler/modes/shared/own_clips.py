"""Clipping by the norm of all gradients where no server ever has them all at once."""

from __future__ import annotations

from pstranspile.ir.model import MAIN, Module, Op
from pstranspile.ir.roles import OpRole

CLIP_SCOPE = "gradient_clip"
"""Name scope of the clips that an optimizer was given."""


def clip_on_trainers(module: Module) -> Module:
    """The module with clips that join several parameters made part of the backward pass, so that they stay on trainers.

    Each trainer then clips its own gradients before it sends them, which is what such a clip means when every gradient
    is applied on its own. Clips of single gradients go to the servers as they are; a module without the others comes
    back as it is.
    """
    block = module.main.main_block
    clips = {i: op for i, op in enumerate(block.ops) if op.role == OpRole.OPTIMIZE and _is_clip(op)}
    if not _joins(clips):
        return module
    ops = tuple(op._replace(role=OpRole.BACKWARD) if i in clips else op for i, op in enumerate(block.ops))
    main = module.main.with_main_block(block._replace(ops=ops))
    return module.with_programs({MAIN: main})


def _is_clip(op: Op) -> bool:
    scope = op.attrs.get("op_namescope")
    return isinstance(scope, str) and CLIP_SCOPE in scope


def _joins(clips: dict[int, Op]) -> bool:
    """Whether one of the clips reads what a clip for another parameter makes."""
    made: dict[str, str] = {}
    for op in clips.values():
        owner = op.role_vars[0] if op.role_vars else ""
        if any(made.get(name, owner) != owner for name in op.input_names):
            return True
        made.update((name, owner) for name in op.output_names)
    return False
