"""The zoo of training setups: what `pt.check` says of each is what DDP really does, with the cause and the line."""

import json
import os
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import pstranspile.torch as pt  # noqa: E402
from pstranspile.ir.diagnostics import DiagnosticError  # noqa: E402
from pstranspile.tools.cli import main  # noqa: E402
from tests.frontends.torch.zoo import composed, refused  # noqa: E402
from tests.frontends.torch.zoo.kinds import CASES, KINDS  # noqa: E402
from tests.frontends.torch.zoo.record import SAME, TRUTH  # noqa: E402

TOLD = json.loads(TRUTH.read_text())
_COMPOSED = {name for name, case in CASES.items() if case.make.__module__ == composed.__name__}
_MORE = ("convolved_rows", "gradients_by_frequency", "experts_with_places", "ghost_batches")
_FIRST = {kind.__name__ for kind in KINDS}
_OF_A_KIND = [
    [name for name, case in CASES.items() if bool(case.words) is differs and case.make.__module__ in _FIRST]
    for differs in (True, False)
]
_SECOND = [name for names in _OF_A_KIND for name in names[::2]]
TRIED = [*CASES] if "PSTRANSPILE_NIGHTLY" in os.environ else [*dict.fromkeys((*_SECOND, *sorted(_COMPOSED), *_MORE))]
"""The setups that are checked: all, or every second that differs and every second that does not, the composed, and
a few of those that are checked at night."""

VERBS = str(Path(TRUTH).with_name("verbs.py"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_as_many_setups_differ_as_there_must_be():
    assert TOLD.keys() == CASES.keys()
    assert all((TOLD[name] > SAME) == bool(case.words) for name, case in CASES.items())
    assert sum(bool(case.words) for case in CASES.values()) >= 60
    assert sum(not case.words for case in CASES.values()) >= 60
    assert all(sum(name in names for name in TRIED) > 30 for names in _OF_A_KIND)
    assert all(bool(case.lines) == bool(case.words) for case in CASES.values())


@pytest.mark.parametrize("name", TRIED)
def test_the_verdict_is_that_of_ddp(name):
    case = CASES[name]
    setup = case.setup()
    options = {"loss": setup.loss, "optimizer": setup.optimizer, "steps": 4, **setup.options}
    training = pt.trace(setup.model, setup.batches[0], **options)
    for batches in (setup.batches, None) if case.made else (setup.batches,):
        report = pt.check_training(training, batches)
        assert not str(report).startswith("not shown"), report
        assert report.equal == (TOLD[name] <= SAME), report
        if not report.equal:
            assert any(re.search(case.words, cause.what) for cause in report.causes), report
            named = {(cause.location.file, cause.location.line) for cause in report.causes if cause.location}
            assert named.intersection(case.lines), report


@pytest.mark.parametrize("name", refused.CASES)
def test_what_is_not_translated_is_refused_at_its_line(name):
    model, loss, batch = refused.CASES[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DiagnosticError, match=r"refused\.py:\d+:\d+: error\[torch-(export|op)\]"):
        pt.check(model, batch, loss=loss, optimizer=optimizer)


def test_a_loss_that_raises_on_wrong_data_is_translated():
    model, loss, batch = refused.checked_variance()
    report = pt.check(model, batch, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert report.equal, report


@pytest.mark.parametrize(
    "name", ["masked_mean", "masked_mean_of_sentences", "batch_norm", "in_batch_negatives", "adam"]
)
def test_the_command_says_the_same(name, capsys):
    code = main(["check", f"{VERBS}:{name}", "--mode", "ddp", "--trainers", "2"])
    told = capsys.readouterr().out
    assert code == (1 if CASES[name].words else 0), told
    assert re.search(CASES[name].words, told), told
    for file, line in CASES[name].lines:
        assert f"{file.rpartition('/')[2]}:{line}:" in told


@pytest.mark.parametrize(
    ("loader", "rows"), [("even", ""), ("uneven", "5 on rank 0, 4 on rank 1"), ("lopsided", "6 on rank 0, 2 on rank 1")]
)
def test_ranks_have_the_rows_that_a_loader_gives_them(loader, rows, capsys):
    code = main(["check", f"{VERBS}:adam", "--mode", "ddp", "--trainers", "2", "--feed", f"{VERBS}:{loader}"])
    told = capsys.readouterr().out
    assert code == (1 if rows else 0), told
    assert rows in told


def test_a_text_keeps_the_lines_of_the_code(tmp_path, monkeypatch, capsys):
    ((file, line), *_) = CASES["masked_mean"].lines
    name = file.rpartition("/")[2]
    monkeypatch.chdir(tmp_path)
    assert main(["import", f"{VERBS}:masked_mean", "-o", "net.ir", "--params", "start.npz"]) == 0
    job = ("--mode", "ddp", "--trainers", "2")
    assert main(["explain", "net.ir", *job, "--line", f"{name}:{line}"]) == 0
    by_text = capsys.readouterr().out
    assert main(["explain", f"{VERBS}:masked_mean", *job, "--line", f"{name}:{line}"]) == 0
    assert by_text == capsys.readouterr().out
    assert main(["check", "net.ir", *job, "--init", "start.npz"]) == 1
    told = capsys.readouterr().out
    code = Path(file).read_text().splitlines()[line - 1].strip()
    assert re.search(rf"net\.ir:\d+:\d+ \(.*{re.escape(name)}:{line}\): .*\n    {re.escape(code)}\n", told), told
