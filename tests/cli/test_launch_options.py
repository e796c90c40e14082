"""What `start` and `launch` are given is looked at before any process begins."""

import pytest

from pstranspile.cli import main


@pytest.mark.parametrize("verb", [["start", "out", "--role", "trainer_0"], ["launch", "out"]])
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--steps", "0", "'0' is no whole number of at least 1"),
        ("--steps", "-3", "'-3' is no whole number of at least 1"),
        ("--threads", "x", "'x' is no whole number of at least 1"),
        ("--state-every", "0", "'0' is no whole number of at least 1"),
        ("--lease", "0", "'0' is no number of seconds above 0"),
        ("--patience", "nan", "'nan' is no number of seconds above 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(verb, option, value, says, capsys):
    assert main([*verb, f"{option}={value}"]) == 2
    assert says in capsys.readouterr().err
