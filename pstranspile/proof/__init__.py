"""Does a cluster train as the single machine does? Both run side by side, and what differs is named.

A check trains one machine and a cluster from the same start on the same data (`training`), replays each step of each
machine from the source program (`replay`, `replays`), compares (`compare`), and looks for the op that is the cause
(`causes`). `uses` and `values` say what data suit a program.

Other wings use `check`, `Report`, `make_feeds` of this module, `report` (report_text), `training`, `workload` and
`pytorch`. Read `check.py` first.
"""

from pstranspile.proof.check import check as check
from pstranspile.proof.report import Report as Report
from pstranspile.proof.values import make_feeds as make_feeds
