"""Pictures of reports in the documents are taken by the browser, and show what the pages show now.

`make pictures` takes anew those that no longer do. Fonts differ from machine to machine, so points are not compared:
each file holds the texts of the headings, labels and explanations that were seen as it was taken.
"""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from tests.golden import Goldens, difference
from tests.tools.report.browser import CHROMIUM, DRIVER, Browser
from tests.tools.report.jobs import JOBS, ROOT

image = pytest.importorskip("PIL.Image", reason="no pillow, which comes with the extra `plot`")

FOLDER = ROOT / "docs" / "pictures"
LARGEST = 150_000
COLOURS = 128
WIDTH, HEIGHT = 1200, 760
SHOWS = "Shows"
"""The text chunk of a picture with what is seen in it."""

SEEN = """const texts = "h2, h3, h4, th, dt, label, button, legend, [role=status], .why";
const seen = [...document.querySelector(".chosen").querySelectorAll(texts)];
return seen.filter((node) => !node.closest(".list, .graph")).map((node) => node.textContent)"""


def opened(browser: Browser) -> None:
    """Why the first parameter is cut as it is."""
    browser.run("document.querySelector('.plan summary').click()")


def send(browser: Browser) -> None:
    """A send of the trainer is explained."""
    browser.run("const s = document.getElementById('search'); s.value = 'send('; s.dispatchEvent(new Event('input'))")
    browser.run("[...document.querySelectorAll('#programs button')].find((b) => b.textContent === 'Next').click()")


def messages(browser: Browser) -> None:
    """A trainer and all servers, and an op that sends."""
    browser.run(
        """const select = document.querySelector("#graph select");
        select.value = "all"; select.dispatchEvent(new Event("change"));
        const boxes = [...document.querySelectorAll(".graph .box")];
        boxes.find((box) => box.querySelector("text").textContent === "send").dispatchEvent(new MouseEvent("click"));"""
    )


def played(browser: Browser) -> None:
    """Some messages of a step have come."""
    step = "[...document.querySelectorAll('#run .tools button')].find((b) => b.textContent === 'Step').click()"
    for _ in range(14):
        browser.run(step)
    browser.run("document.querySelector('#run .tools').parentNode.previousElementSibling.scrollIntoView()")


PICTURES: dict[str, tuple[str, bool, Callable[[Browser], None] | None]] = {
    "report_cluster": ("cluster", False, None),
    "report_plan": ("plan", True, opened),
    "report_programs": ("programs", False, send),
    "report_graph": ("graph", False, messages),
    "report_step": ("run", False, played),
}
"""Picture -> the part, whether it is dark, and what is done before it is taken."""


@pytest.fixture(scope="module")
def browsers() -> Iterator[dict[bool, Browser]]:
    with Browser(WIDTH, HEIGHT) as light, Browser(WIDTH, HEIGHT, dark=True) as dark:
        yield {False: light, True: dark}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a program that is named as in the documents."""
    file = tmp_path_factory.mktemp("pictures") / "report.html"
    options = JOBS["ctr"][1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert main(["report", "examples/ctr_dnn.ir", *options, "-o", str(file)]) == 0
    return file


def compressed(points: bytes, shows: str) -> bytes:
    """A picture in few colours, which says what it shows."""
    from PIL.PngImagePlugin import PngInfo

    info, out = PngInfo(), io.BytesIO()
    info.add_itxt(SHOWS, shows, zip=True)
    few = image.open(io.BytesIO(points)).convert("RGB").quantize(COLOURS, dither=image.Dither.NONE)
    few.save(out, "PNG", optimize=True, pnginfo=info)
    return out.getvalue()


def shown_in(file: Path) -> str:
    """What a picture says that it shows."""
    return image.open(file).text.get(SHOWS, "") if file.exists() else ""


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with a chromedriver")
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_the_page_shows(
    name: str, browsers: dict[bool, Browser], page: Path, tmp_path: Path, goldens: Goldens
):
    part, dark, act = PICTURES[name]
    browser, file = browsers[dark], FOLDER / f"{name}.png"
    browser.open(page)
    browser.run("document.getElementById('tab-' + arguments[0]).click()", part)
    if act is not None:
        act(browser)
    browser.later("requestAnimationFrame(() => requestAnimationFrame(arguments[arguments.length - 1]))")
    shows = "\n".join(re.sub(r"\s+", " ", text).strip() for text in browser.run(SEEN))
    assert len(shows) > 100
    taken = tmp_path / f"{name}.png"
    browser.picture(taken)
    points = compressed(taken.read_bytes(), shows)
    assert len(points) < LARGEST
    if shown_in(file) != shows:
        if not goldens.bless:
            pytest.fail(f"{difference(file.name, shown_in(file), shows)}\nIf the page is right:\n  make pictures")
        file.write_bytes(points)
        goldens.changed.append(f"docs/pictures/{file.name}")


def test_pictures_are_small_and_in_the_documents():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    used = {found for file in documents for found in re.findall(r"pictures/([\w.]+)", file.read_text(encoding="utf-8"))}
    assert used == {file.name for file in FOLDER.iterdir()}
    assert {f"{name}.png" for name in PICTURES} == {name for name in used if name.endswith(".png")}
    for name in PICTURES:
        file = FOLDER / f"{name}.png"
        assert file.stat().st_size < LARGEST, name
        picture = image.open(file)
        assert (picture.size, picture.mode) == ((WIDTH, HEIGHT), "P"), name
        assert shown_in(file), name
