"""Fluid's `contrib.utils`: files of a hadoop cluster."""

from __future__ import annotations

from pstranspile.fluid.contrib.utils import hdfs_utils as hdfs_utils
from pstranspile.fluid.contrib.utils.hdfs_utils import HDFSClient as HDFSClient
from pstranspile.fluid.contrib.utils.hdfs_utils import multi_download as multi_download
from pstranspile.fluid.contrib.utils.hdfs_utils import multi_upload as multi_upload
from pstranspile.fluid.missing import names_of_fluid

__getattr__ = names_of_fluid(__name__, globals())
