"""The `paddle` that processes started by `python -m pstranspile.fluid` import, because this folder is in their
PYTHONPATH.
"""

import sys
from importlib import import_module

from pstranspile.fluid.aliases import install_for_scripts

install_for_scripts()
del sys.modules["paddle"]
sys.modules["paddle"] = import_module("paddle")
