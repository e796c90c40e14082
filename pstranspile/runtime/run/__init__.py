"""The reference interpreter: programs run on numpy arrays, on one machine."""

from pstranspile.runtime.run.prepared import run as run
