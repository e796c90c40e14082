"""Pages that a browser shows: a compiled job with its plan, programs, graph and run; and differences.

Python takes the contents of a page from `explain`, the plan, the recorder of a run and `check`, and puts them into the
page as JSON. The scripts and the style in this folder draw it. A page is one file that loads nothing.
"""
