"""Does a cluster train as the single machine does? Both run side by side, and what differs is named."""

from pstranspile.proof.check import check as check
from pstranspile.proof.report import Report as Report
from pstranspile.proof.values import make_feeds as make_feeds
