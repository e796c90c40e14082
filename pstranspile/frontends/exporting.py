"""A module as files that Fluid reads, with the metadata that these do not carry."""

from __future__ import annotations

import os

from pstranspile.ir.expect import expect_module, path_of
from pstranspile.ir.model import Module


def export(module: Module, folder: str | os.PathLike[str]) -> None:
    """Writes every program of the module to `<name>.pb`, a serialized ProgramDesc, and the rest to `meta.json`.

    `load(folder/main.pb, startup=folder/startup.pb, meta=folder/meta.json)` gives the module again. The folder is made
    if there is none; all files are written, or none. Raises DiagnosticError for a value that a ProgramDesc can't hold,
    and when a file can't be written. Warns of ops that Fluid computes by another formula.
    """
    from pstranspile.frontends.json_text import json_text
    from pstranspile.frontends.meta import meta_of, warn_of_newer_ops
    from pstranspile.frontends.program_desc import program_to_bytes
    from pstranspile.runtime.files.outputs import write_outputs

    expect_module(module, "export")
    path_of(folder, "export")
    warn_of_newer_ops(module.programs.values())
    files = {f"{name}.pb": program_to_bytes(program) for name, program in module.programs.items()}
    files["meta.json"] = json_text(meta_of(module)).encode("utf-8")
    write_outputs(folder, files)
