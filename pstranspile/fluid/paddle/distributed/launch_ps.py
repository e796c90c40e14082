"""`python -m paddle.distributed.launch_ps`: the launcher of that name."""

import sys

from pstranspile.fluid.launchers.launch_ps import launch as launch

if __name__ == "__main__":
    sys.exit(launch())
