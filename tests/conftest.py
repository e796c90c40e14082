"""What all tests share: `pytest --bless`, and the fixture that compares with recorded text."""

import os
from collections.abc import Iterator
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy is imported: threads only wait for each other here

import pytest
from hypothesis import settings

from tests.golden import Goldens

ROOT = Path(__file__).parent.parent

settings.register_profile("untimed", deadline=None)  # a slow machine is no failure
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bless",
        action="store_true",
        help="rewrite golden files that differ, and list them; refused where the environment sets CI",
    )


WAITING = ("ray_cluster", "tests", "net")
"""Folders whose own files start processes and mostly wait for them, those with the longest tests first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads those files over the first two thirds of a run.

    While one worker waits, others compute; and no long test begins last, when other workers have nothing left to do.
    """
    paths = list(dict.fromkeys(item.path for item in items))
    waiting = [path for folder in WAITING for path in paths if path.parent.name == folder]
    others = [path for path in paths if path.parent.name not in WAITING]
    places = {path: 0.66 * number / len(waiting) for number, path in enumerate(waiting)}
    places |= {path: number / len(others) for number, path in enumerate(others)}
    items.sort(key=lambda item: places[item.path])


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist would begin with the files that have most tests
    if config.getoption("--bless") and os.environ.get("CI"):
        raise pytest.UsageError("--bless is for people who read what they bless; it is refused under CI")


@pytest.fixture(scope="session")
def goldens(request: pytest.FixtureRequest) -> Iterator[Goldens]:
    """The golden files of this session; what was blessed is listed at its end."""
    kept = Goldens(ROOT, bless=request.config.getoption("--bless"))
    request.config.stash[BLESSED] = kept.changed
    return kept


BLESSED = pytest.StashKey[list[str]]()


@pytest.fixture
def golden(goldens: Goldens, request: pytest.FixtureRequest):
    """`golden(path, text)`: the text is what the file holds, or the test fails with a diff."""
    return lambda path, text: goldens.check(Path(path), text, request.node.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(BLESSED, []):
        terminalreporter.write_line(f"blessed {line}")
