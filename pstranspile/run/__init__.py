"""The reference interpreter: programs run on numpy arrays, on one machine."""

from pstranspile.run.api import run as run
