"""`pstranspile start` whose steps take half a second each as long as a file is there.

paced.py FILE ARGUMENTS...
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pstranspile.cluster.net.status import StatusPipe
from pstranspile.tools.cli import main

HOLD = Path(sys.argv[1])


def telling(pipe: StatusPipe, **fields: Any) -> None:
    tell(pipe, **fields)
    if "values" in fields and HOLD.exists():
        time.sleep(0.5)


tell, StatusPipe.__call__ = StatusPipe.__call__, telling
sys.exit(main(sys.argv[2:]))
