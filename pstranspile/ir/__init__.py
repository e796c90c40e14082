"""The model of programs, and their textual form.

A `Module` holds programs, a program blocks, a block ops and variables; all of them are frozen values. Every op records
the place in the source that it came from; an error in it is reported as a `Diagnostic` with this place.

Other wings use `model` (programs), `types` and `attributes` (what programs hold), `diagnostics`, `codes`, `extras`,
`user_warnings` and `argument_checks` (findings, and checks of arguments), `passes`, `table_rules`, `json_text`,
`reading`, `layout` and `patterns` (texts of files and messages), `startup_signals` (signals while a command starts),
and `text` (the reader and the printer). Its own are `text.diagnose` and `text.statement`. Read `model.py` first.
"""
