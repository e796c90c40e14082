"""`python -m pstranspile.fluid.launch`: starts the trainers of a collective script as processes of this host."""

import sys

from pstranspile.fluid.launchers.launch import launch
from pstranspile.ir.starting import restore

if __name__ == "__main__":
    restore()
    sys.exit(launch())
