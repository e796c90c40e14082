"""`python -m paddle.distributed.fleet.launch`, which `fleetrun` starts in 2.x: the launcher of `paddle.distributed`."""

import sys

from pstranspile.fluid.paddle.distributed.launch import launch

if __name__ == "__main__":
    sys.exit(launch())
