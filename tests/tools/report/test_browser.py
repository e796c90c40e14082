"""Pages in a real browser: every part is clicked through, nothing is complained of, and nobody is kept out."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pstranspile import Job, compile
from pstranspile.compiler.explain import of_compiled
from pstranspile.tools.report import REPORT, page
from pstranspile.tools.report.data import report_data
from tests.models import mlp
from tests.tools.report.browser import CHROMIUM, DRIVER, Browser
from tests.tools.report.jobs import JOBS, page_of

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with a chromedriver")

PARTS = ("cluster", "plan", "programs", "graph", "run")
FILES = {"ctr": "ctr_dnn.ir", "convnet": "mnist_conv.ir", "deep": "deep.ir"}
"""The program's file by the name of the job: CTR, synchronous, 2x2; a convnet, geo; 100 layers on 10 servers."""

NAMES = tuple(FILES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def choose(browser: Browser, part: str) -> None:
    browser.run("document.getElementById('tab-' + arguments[0]).click()", part)
    browser.later("requestAnimationFrame(() => requestAnimationFrame(arguments[arguments.length - 1]))")


def click_op(browser: Browser, beginning: str, column: int) -> str:
    """Chooses the first op in sight of a column that begins so; gives its explanation."""
    return browser.run(
        """const cells = [...document.querySelectorAll(`#programs [data-column="${arguments[1]}"] .code`)];
        cells.find((cell) => cell.textContent.startsWith(arguments[0])).click();
        return document.querySelector("#programs .why").textContent;""",
        beginning,
        column,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_a_report_is_there(browser: Browser, folder: Path, name: str):
    browser.open(page_of(name, folder))
    for part in PARTS:
        choose(browser, part)
        assert browser.run("return document.querySelector('.chosen').id") == part
        text = browser.run("return document.querySelector('.chosen').textContent")
        assert len(text) > 100
        assert not re.search(r"\b(null|undefined|NaN|\[object)", text)
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.run(wide) <= 0, part
    assert browser.complaints() == []


@pytest.mark.parametrize("name", NAMES)
def test_a_send_is_explained_and_its_partner_found(browser: Browser, folder: Path, name: str):
    browser.open(page_of(name, folder))
    choose(browser, "programs")
    browser.run("const s = document.getElementById('search'); s.value = 'send('; s.dispatchEvent(new Event('input'))")
    assert "found" in browser.run("return document.querySelector('#programs [role=status]').textContent")
    browser.run("[...document.querySelectorAll('#programs button')].find((b) => b.textContent === 'Next').click()")
    why = browser.run("return document.querySelector('#programs .why').textContent")
    assert "trainer_0 @main^0#" in why
    assert f"Rule {'tell-step' if name == 'convnet' else 'send-gradient'}" in why
    assert f"{FILES[name]}:" in why or name == "convnet"  # no op of the source tells of a step
    go_to_peer = """const buttons = [...document.querySelectorAll("#programs .peer")];
        const button = buttons.find((b) => b.textContent.includes(arguments[0]));
        button.click(); return document.querySelector("#programs .why h3").textContent;"""
    assert browser.run(go_to_peer, "pserver").startswith("pserver")
    assert (
        browser.run("return document.querySelectorAll('#programs .partner').length") > 0 or name == "deep"
    )  # far away
    assert browser.run(go_to_peer, "trainer_0 @main").startswith("trainer_0 @main")
    assert browser.complaints() == []


@pytest.mark.parametrize("name", NAMES)
def test_blocks_fold_and_the_keyboard_goes_through_ops(browser: Browser, folder: Path, name: str):
    browser.open(page_of(name, folder))
    choose(browser, "programs")
    rows = "return Number(document.querySelector('#programs .list').getAttribute('aria-rowcount'))"
    select = """const s = [...document.querySelectorAll("#programs select")][1];
        s.value = "own"; s.dispatchEvent(new Event("change"))"""
    browser.run(select)
    boxes = """for (const box of document.querySelectorAll("#programs input[type=checkbox]"))
        if (box.checked !== (box.parentNode.textContent.trim() === "pserver_0")) box.click()"""
    browser.run(boxes)
    unfolded = browser.run(rows)
    browser.run("document.querySelector('#programs .fold').click()")
    assert browser.run(rows) == 2 < unfolded
    browser.run("document.querySelector('#programs .fold').click()")
    assert browser.run(rows) == unfolded
    browser.run("document.querySelector('#programs .list').focus()")
    down, enter = "\ue015", "\ue007"
    browser.keys(down * 3 + enter)
    active = "return document.querySelector('#programs .list').getAttribute('aria-activedescendant')"
    assert browser.run(active).endswith("-3-0")
    assert "pserver_0 @main^" in browser.run("return document.querySelector('#programs .why').textContent")


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_played_and_gone_through(browser: Browser, folder: Path, name: str):
    browser.open(page_of(name, folder))
    choose(browser, "run")
    step = "[...document.querySelectorAll('#run .tools button')].find((b) => b.textContent === arguments[0]).click()"
    browser.run(step, "Step")
    told = "return document.querySelector('#run [role=status]').textContent"
    assert browser.run(told).startswith("1 of ")
    assert browser.run("return document.querySelectorAll('.chart .arrow').length") == 1
    browser.run(step, "Play")
    browser.run(step, "Pause")
    assert browser.run(told).startswith("2 of ")
    browser.run(step, "Back")
    assert browser.run(told).startswith("1 of ")
    if "--check" in JOBS[name]:
        header = browser.run("return document.querySelector('header').textContent")
        assert "the cluster trains as the single machine does" in header
        assert "What the mode promises holds." in browser.run("return document.getElementById('run').textContent")
    assert browser.complaints() == []


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_unfolds_and_shows_messages(browser: Browser, folder: Path, name: str):
    browser.open(page_of(name, folder))
    choose(browser, "graph")
    labels = "return [...document.querySelectorAll('.graph .box text')].map((text) => text.textContent)"
    unfold = """const layer = document.querySelector(".graph .folded"), label = layer.querySelector("text").textContent;
        layer.dispatchEvent(new MouseEvent("click")); return label;"""
    before, layer = browser.run(labels), browser.run(unfold)
    assert layer in before
    assert layer not in browser.run(labels)
    browser.run(
        "const s = document.querySelector('#graph select'); s.value = 'all'; s.dispatchEvent(new Event('change'))"
    )
    assert browser.run("return document.querySelectorAll('.graph .message').length") > 0
    box = "[...document.querySelectorAll('.graph .box:not(.folded)')][0].dispatchEvent(new MouseEvent('click'))"
    browser.run(box)
    assert "@main^" in browser.run("return document.querySelector('#graph .why h3').textContent")
    assert browser.complaints() == []


@pytest.mark.parametrize("name", NAMES)
def test_fit_has_all_of_the_graph_in_sight(browser: Browser, folder: Path, name: str):
    browser.open(page_of(name, folder))
    choose(browser, "graph")
    press = "[...document.querySelectorAll('#graph button')].find((one) => one.textContent === arguments[0]).click()"
    outside = """const frame = document.querySelector(".graph").getBoundingClientRect();
        const boxes = [...document.querySelectorAll(".graph .box rect")].map((box) => box.getBoundingClientRect());
        return [boxes.length, boxes.filter((box) => box.left < frame.left - 1 || box.right > frame.right + 1
          || box.top < frame.top - 1 || box.bottom > frame.bottom + 1).length];"""
    for view in ("source", "all"):
        browser.run(
            "const s = document.querySelector('#graph select'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('change'))",
            view,
        )
        for button in ("Unfold layers", "Fold layers"):
            browser.run(press, button)
            browser.run(press, "Fit")
            boxes, cut_off = browser.run(outside)
            assert boxes
            assert cut_off == 0
    assert browser.complaints() == []


def violations(browser: Browser) -> list[Any]:
    """What the accessibility checker has against the page as it is, serious or critical."""
    return browser.later(
        """const done = arguments[arguments.length - 1];
        axe.run().then((found) => done(found.violations.filter((v) => ["serious", "critical"].includes(v.impact))
          .map((v) => [v.id, v.help, v.nodes.map((node) => node.html.slice(0, 200))])));"""
    )


@pytest.mark.skipif(find_spec("axe_core_python") is None, reason="there is no accessibility checker")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_kept_out(browser: Browser, folder: Path, scheme: str, name: str):
    spec = find_spec("axe_core_python")
    assert spec is not None
    assert spec.origin is not None
    checker = (Path(spec.origin).parent / "axe.min.js").read_text()
    browser.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(page_of(name, folder))
    browser.run(f"{checker}; window.axe = axe;")
    for part in PARTS:
        choose(browser, part)
        if part == "plan":
            browser.run("document.querySelector('.plan summary').click()")
        if part == "programs":
            click_op(browser, "conv2d" if name == "convnet" else "mul", 1)
        assert violations(browser) == [], part


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_window_has_all_of_it(browser: Browser, folder: Path, name: str):
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.devtools("Emulation.setDeviceMetricsOverride", **size)
    try:
        browser.open(page_of(name, folder))
        for part in PARTS:
            choose(browser, part)
            assert browser.run("return document.documentElement.scrollWidth") <= 400, part
    finally:
        browser.devtools("Emulation.setDeviceMetricsOverride", **{**size, "width": 1300})


SCROLL = """const done = arguments[arguments.length - 1], list = document.querySelector("#programs .list");
performance.mark("scrolled from");
let frame = 0;
const next = () => {
  list.scrollTop += frame % 20 === 19 ? 20000 : 400;
  frame += 1;
  if (frame < 60) requestAnimationFrame(next);
  else setTimeout(() => { performance.mark("scrolled to"); done(); }, 200);
};
next();"""


def test_a_large_report_is_soon_there_and_scrolls_smoothly(folder: Path):
    """10,800 ops, 100 servers. Seconds are those of the CPU, so that a busy machine does not matter."""
    module = mlp(600)
    file = folder / "large.html"
    data = report_data(of_compiled(compile(module, Job(pservers=100, trainers=2))), "net.ir", module)
    file.write_bytes(page("large", data, REPORT))
    assert file.stat().st_size < 15_000_000
    with Browser(traced=True) as browser:
        browser.open(file)
        assert browser.run("return document.querySelectorAll('#cluster tbody tr').length") < 200
        browser.later("setTimeout(arguments[arguments.length - 1], 500)")
        assert 0.01 < sum(browser.work("navigationStart", "firstContentfulPaint")) < 1.5
        choose(browser, "programs")
        assert browser.run("return document.querySelector('#programs .list').getAttribute('aria-rowcount') > 10000")
        browser.later(SCROLL)
        tasks = browser.work("scrolled from", "scrolled to")
        assert sum(task > 0.001 for task in tasks) > 20
        assert max(tasks) < 0.1
        assert browser.complaints() == []


def test_it_prints_every_part(browser: Browser, folder: Path):
    browser.open(page_of("ctr", folder))
    printed = browser.devtools("Page.printToPDF", printBackground=True)["data"]
    assert len(printed) > 50_000
    made = browser.run("return [...document.querySelectorAll('[role=tabpanel]')].map((p) => p.childElementCount > 1)")
    assert made == [True] * len(PARTS)
