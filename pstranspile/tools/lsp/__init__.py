"""A language server for the text of programs and for job files: what an editor shows while they are written.

Each feature is a function from an `Outline` (the lines of a text, and which block each is in) and a `TextPosition` to
values of `values.py`. It works without a readable program, and so in the middle of a word. `reading.py` makes findings
of a text, and the placement that the job file next to it gives. Only `server.py` and `session.py` know the protocol;
`session.py` also keeps the texts that are open.
"""
