"""`python -m paddle.distributed.launch`: the launcher of that name."""

import sys

from pstranspile.fluid.launchers.launch import launch as launch

if __name__ == "__main__":
    sys.exit(launch())
