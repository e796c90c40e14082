"""What all tests share: `pytest --bless`, and the fixture that compares with recorded text."""

import compileall
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy is imported: threads only wait for each other here
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start Python hundreds of times, which would compile all anew

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell; processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from hypothesis import settings

from tests.forking import fork_machines
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


LONG = ("cluster/ray_cluster", "frontends/torch", "cluster/net", "cluster/checkpoint", "hostile", "fluid")
"""Folders with few and long tests, which start processes and wait for them, and the one that takes longest."""

PYTORCH = "tests/frontends/torch/"
"""The folder whose tests leave the most objects behind: PyTorch's compiler, and what it remembers of each model."""

ALONE = ("tests/cluster/ray_cluster/", PYTORCH)
"""Folders whose tests one worker runs one after another: each file of the first has a cluster and mostly waits for it,
and PyTorch takes a worker a quarter of a minute before the first model is traced.
"""

APART = "tests/test_docs.py::"
"""The tests that workers take one by one: they last minutes together, in which other workers would have ended."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Makes the collection of thousands of tests cheaper: nothing of it is garbage, and modules are compiled once.

    Each worker begins with other modules than the others, and so finds most of the modules compiled when it comes to
    them. In the order of the collection all of them would compile each module at the same time.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None and session.config.getoption("numprocesses", default=None):
        return  # the workers collect, and not this process
    gc.disable()
    if worker is None:
        return
    count, number = worker["workercount"], int(worker["workerid"].removeprefix("gw")) % worker["workercount"]
    for source in sorted((ROOT / "pstranspile").rglob("*.py"))[number::count]:
        compileall.compile_file(source, quiet=2)
    given = [(session.config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in session.config.args]
    files = {file for path in given for file in (path.rglob("test_*.py") if path.is_dir() else (path,))}
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in sorted(files)]
    begin = len(modules) * number // count
    import_known([*modules[begin:], *modules[:begin]])


def import_known(modules: Iterable[str]) -> None:
    """Imports modules of tests, which are compiled by this. One that is skipped or fails, whatever it raises, is not
    imported then: the collection does so again, and reports it.
    """
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, pytest.skip.Exception):
            assert name not in sys.modules


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs long tests first, because the workers that have ended wait for a long one that another began last."""
    places = {str(ROOT / "tests" / folder): place for place, folder in enumerate(LONG)}
    items.sort(key=lambda item: places.get(str(item.path.parent), len(places)))


def pytest_collection_finish() -> None:
    """Takes the thousands of tests out of the garbage collector's sight, which would look at them again and again.

    It then looks at what tests leave a tenth as often as Python has it do, which takes half of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(7_000, 10, 10)
    gc.enable()
    fork_machines()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Takes what PyTorch has left out of the collector's sight once its last test of this worker has ended."""
    if item.nodeid.startswith(PYTORCH) and nextitem is not None and not nextitem.nodeid.startswith(PYTORCH):
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One worker more than there are processors: one has the tests that mostly wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return len(usable) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals files to workers, a folder of `ALONE` as if it was one, and the tests `APART` as if each was one."""
    from xdist.scheduler import LoadFileScheduling

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid
            return next((folder for folder in ALONE if nodeid.startswith(folder)), super()._split_scope(nodeid))

    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None


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
