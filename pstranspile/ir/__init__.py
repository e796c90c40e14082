"""What a program is, and its text.

A `Module` holds programs, a program blocks, a block ops and variables; all of them are frozen values. Every op knows
the place in a source that it came from, and what is wrong with it is a `Diagnostic` with that place.

Other wings use `model` (programs), `types` and `attributes`, `diagnostics`, `frozen`, and the reader and the printer in
`text`. Read `model.py` first.
"""
