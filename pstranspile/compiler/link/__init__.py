"""Do all programs of a job together fit? The link check reads the emitted programs as a linker reads object files.

It knows nothing of how the programs were made. A finding is a fault of the compiler, so it ends in LinkError (exit
code 3).
"""

from __future__ import annotations

from pstranspile.compiler.link.check import link
from pstranspile.compiler.link.machines import LinkError

__all__ = ["LinkError", "link"]
