"""Devices and named pipes of tests."""

import os

import pytest

FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
"""Marks tests that write to `/dev/full`, which is a device of Linux."""

PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes, as on Windows")
"""Marks tests about named pipes, which are files of POSIX systems."""
