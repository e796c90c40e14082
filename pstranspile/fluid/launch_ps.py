"""`python -m pstranspile.fluid.launch_ps`: starts servers and trainers of a script as processes of this host."""

import sys

from pstranspile.fluid.launchers.launch_ps import launch
from pstranspile.ir.starting import restore

if __name__ == "__main__":
    restore()
    sys.exit(launch())
