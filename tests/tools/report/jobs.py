"""The jobs that pages are made of in tests, and the data of a page."""

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pstranspile.ops.textual import print_module
from pstranspile.tools.cli import main
from tests.models import mlp

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"

JOBS = {
    "regression": [
        str(EXAMPLES / "regression.ir"),
        "--pservers",
        "2",
        "--trainers",
        "2",
        "--run",
        "--check",
        "--steps",
        "2",
    ],
    "ctr": [str(EXAMPLES / "ctr_dnn.ir"), "--pservers", "2", "--trainers", "2", "--run", "--check", "--steps", "2"],
    "convnet": [str(EXAMPLES / "mnist_conv.ir"), "--pservers", "2", "--trainers", "2", "--mode", "geo", "--steps", "2"],
    "collective": [
        str(EXAMPLES / "regression.ir"),
        "--trainers",
        "a:1,b:1",
        "--mode",
        "grad-allreduce",
        "--steps",
        "2",
    ],
    "deep": ["deep.ir", "--pservers", "10", "--trainers", "2", "--steps", "1"],
}
"""Options of `report` by the name of the job."""


@cache
def page_of(name: str, folder: Path) -> Path:
    """The page of a job, made once."""
    file = folder / f"{name}.html"
    program, *options = JOBS[name]
    if program == "deep.ir":
        program = str(folder / program)
        Path(program).write_text(print_module(mlp(100)))
    assert main(["report", program, *options, "-o", str(file)]) == 0
    return file


def deep(layers: int) -> str:
    """A program of so many layers that are alike."""
    names = range(layers)
    variables = "".join(f"    param %w{n} : f32[20, 20]\n    temp %t{n} : f32[-1, 20]\n" for n in names)
    ops = "".join(f"    mul(X=%{f't{n - 1}' if n else 'x'}, Y=%w{n}) -> Out=%t{n}\n" for n in names)
    updates = "".join(
        f"    temp %w{n}@GRAD : f32[20, 20]\n"
        f"    fill_constant -> Out=%w{n}@GRAD {{shape=[20, 20]}} : backward(%w{n}, %w{n}@GRAD)\n"
        f"    sgd(Param=%w{n}, Grad=%w{n}@GRAD, LearningRate=%lr) -> ParamOut=%w{n} : optimize(%w{n}, %w{n}@GRAD)\n"
        for n in names
    )
    starts = "".join(
        f"    param %w{n} : f32[20, 20]\n    fill_constant -> Out=%w{n} {{shape=[20, 20]}}\n" for n in names
    )
    rate, head = "    state %lr : f32[1]\n", "{\n  block ^0 {\n"
    main_block = f"{rate}    temp %x : f32[-1, 20] feed\n{variables}{ops}{updates}"
    start_block = f"{rate}    fill_constant -> Out=%lr {{shape=[1]}}\n{starts}"
    return f"ir 1\nprogram @main {head}{main_block}  }}\n}}\nprogram @startup {head}{start_block}  }}\n}}\n"


class Page(HTMLParser):
    """The elements of a page, and the texts of its scripts. Every element is closed, or the test fails."""

    VOID = ("meta", "link", "br", "input")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style", "title"):
            key = self.elements[-1][1].get("id") or self.open[-1]
            self.texts[key] = self.texts.get(key, "") + data


def data_of(text: str) -> dict[str, Any]:
    """What a page shows."""
    parsed = Page(text)
    return {**json.loads(parsed.texts["data"]), **json.loads(parsed.texts.get("later", "{}"))}


def op_texts(data: dict[str, Any], machine: int) -> list[str]:
    """The ops of a machine of a page."""
    programs = data["programs"]
    return [programs["texts"][programs["ops"][op][0]] for op in programs["machines"][machine]["op"]]


def addresses(text: str) -> list[str]:
    """The addresses that a page names, without those of XML's namespaces."""
    return [found for found in re.findall(r"https?://[^\s\"'<>)]+", text) if not found.startswith("http://www.w3.org/")]
