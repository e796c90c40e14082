"""`python -m pstranspile`: the command line without its console script."""

import sys

from pstranspile.cli import main

sys.exit(main())
