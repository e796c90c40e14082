"""`entry_attr` of 2.x: rules by which rows enter a table of `sparse_embedding`."""

from pstranspile.fluid.running.large import CountFilterEntry as CountFilterEntry
from pstranspile.fluid.running.large import EntryAttr as EntryAttr
from pstranspile.fluid.running.large import ProbabilityEntry as ProbabilityEntry
from pstranspile.fluid.running.large import ShowClickEntry as ShowClickEntry
