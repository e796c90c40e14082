"""Stands for Fluid in processes that `python -m pstranspile.fluid` starts, whose PYTHONPATH leads here."""

import sys
from importlib import import_module

from pstranspile.fluid.aliases import install_for_scripts

install_for_scripts()
del sys.modules["paddle"]
sys.modules["paddle"] = import_module("paddle")
