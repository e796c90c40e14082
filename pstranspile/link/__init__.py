"""Do all programs of a job together fit? The link check reads the emitted programs as a linker reads object files."""

from __future__ import annotations

from pstranspile.link.check import Linked, LinkError, link

__all__ = ["LinkError", "Linked", "link"]
