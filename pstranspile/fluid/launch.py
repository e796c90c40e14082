"""`python -m pstranspile.fluid.launch`: the trainers of a collective script as processes of this host."""

import sys

from pstranspile.fluid.paddle.distributed.launch import launch

if __name__ == "__main__":
    sys.exit(launch())
