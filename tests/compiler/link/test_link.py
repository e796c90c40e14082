"""The link check passes on what the compiler emits in every mode, and every code of it is provoked somewhere."""

from __future__ import annotations

import pytest

from pstranspile.compiler.link import link
from pstranspile.ir.codes import CODES
from tests.compiler.link import (
    test_communicators,
    test_geo,
    test_meetings,
    test_parts,
    test_servers,
    test_steps,
    test_tables,
)
from tests.compiler.link.jobs import JOBS, Case, roles

FILES = (test_steps, test_servers, test_communicators, test_tables, test_geo, test_parts, test_meetings)
CASES: list[Case] = [case for file in FILES for case in file.CASES]


@pytest.mark.parametrize("name", JOBS)
def test_what_the_compiler_emits_links(name: str) -> None:
    link(roles(name).values())


def test_every_code_is_provoked() -> None:
    assert {code for code in CODES if code.startswith("link-")} == {case.code for case in CASES}


def test_every_mode_is_damaged() -> None:
    assert {case.job for case in CASES} >= set(JOBS)
