"""A finding prints as its message does."""

from __future__ import annotations

import pstranspile as ps
from pstranspile.ir.diagnostics import Note, error, warning
from pstranspile.ir.model import Location


def test_a_finding_prints_as_its_message():
    assert str(ps.error("data-row", "no value")) == "error[data-row]: no value"
    place = Location("net.ir", 3, 5)
    assert f"{warning('data-row', 'no value', place)}" == "net.ir:3:5: warning[data-row]: no value"
    noted = error("data-row", "no value", place, notes=[Note("elsewhere", Location("other.ir", 1, 1))])
    assert str(noted) == str(ps.DiagnosticError([noted]))
    assert "\x1b" not in str(error("data-row", "\x1b[2J", place))


def test_its_fields_show_in_a_list():
    assert repr(ps.error("data-row", "no value")).startswith("Diagnostic(code='data-row', message='no value'")
