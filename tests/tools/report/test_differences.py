"""Differences as a page."""

from pathlib import Path

import pytest

from pstranspile.compiler.diff import diff
from pstranspile.tools.cli import main
from tests.tools.report.browser import CHROMIUM, DRIVER, Browser
from tests.tools.report.jobs import ROOT, addresses, data_of

REGRESSION = ROOT / "examples" / "regression.ir"


def changed(folder: Path) -> Path:
    file = folder / "changed.ir"
    text = REGRESSION.read_text().replace("value=0.01", "value=0.02").replace("%error", '%"</script>"')
    file.write_text(text.replace('"</script>"@GRAD', '"</script>@GRAD"'))
    return file


def test_every_difference_is_in_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other, page = changed(tmp_path), tmp_path / "page.html"
    assert main(["diff", str(REGRESSION), str(other), "--html", str(page)]) == 1
    text = page.read_text()
    data = data_of(text)
    wanted = diff(REGRESSION, other)
    assert [entry["lines"] for entry in data["differences"]] == [
        [line._asdict() for line in difference.lines] for difference in wanted
    ]
    assert capsys.readouterr().out == f"{data['summary']}\n"
    assert addresses(text) == []
    assert text.count("</script>") == 2
    assert main(["diff", str(REGRESSION), str(REGRESSION), "--html", str(page)]) == 0
    assert data_of(page.read_text())["differences"] == []


def test_where_no_page_can_be_written_there_is_no_verdict(tmp_path: Path):
    assert main(["diff", str(REGRESSION), str(REGRESSION), "--html", str(tmp_path)]) == 2
    assert main(["diff", str(REGRESSION), str(REGRESSION), "--html", "x", "--json"]) == 2


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with a chromedriver")
def test_a_browser_shows_and_filters_them(tmp_path: Path):
    page = tmp_path / "page.html"
    main(["diff", str(REGRESSION), str(changed(tmp_path)), "--html", str(page)])
    with Browser() as browser:
        browser.open(page)
        assert "0.02" in browser.run("return document.getElementById('main').textContent")
        count = "return document.querySelectorAll('.hunk').length"
        before = browser.run(count)
        browser.run("const s = document.querySelector('input'); s.value = '0.02'; s.dispatchEvent(new Event('input'))")
        assert 0 < browser.run(count) < before
        assert browser.complaints() == []
