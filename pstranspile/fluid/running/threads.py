"""Matrix products use one thread, as in Fluid, unless the environment asks for more.

One thread is faster for small products and on busy machines, where threads wait for each other. numpy reads the
variable when it is imported, so this module is imported first; the processes that a script starts have it as well.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
