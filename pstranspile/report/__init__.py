"""Pages that a browser shows: a compiled job with its plan, programs, graph and run; and differences.

Python computes what a page shows from what `explain`, the plan, the recorder of a run and `check` say, as JSON inside
the page. The scripts and the style beside this file draw it. A page is one file that loads nothing.
"""
