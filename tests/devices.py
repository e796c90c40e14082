"""Devices that tests write to."""

import os

import pytest

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
"""Marks tests that write to `/dev/full`, which is a device of Linux."""
