"""`python -m pstranspile.fluid.launch_ps`: servers and trainers of a script as processes of this host."""

import sys

from pstranspile.fluid.paddle.distributed.launch_ps import launch

if __name__ == "__main__":
    sys.exit(launch())
