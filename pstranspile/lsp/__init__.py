"""A language server for the text of programs and for job files: what an editor shows while they are written.

Each feature is a function from an `Outline` (the lines of a text, and which block each is in) and a `Spot` to values of
`values.py`. It needs no program that can be read, so that it works in the middle of a word. `reading.py` makes findings
of a text, `placement.py` those of the job beside it; `server.py` alone knows the protocol.
"""
