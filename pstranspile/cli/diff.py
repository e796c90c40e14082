"""`pstranspile diff`: the semantic difference of two programs, modules or output folders."""
