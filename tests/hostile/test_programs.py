"""Damaged programs, as text and serialized, given to the commands that read programs."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from tests.conftest import ROOT
from tests.hostile.counts import cases
from tests.hostile.mutate import changed_bytes, changed_json, changed_lines, json_bytes
from tests.hostile.trial import campaign, command
from tests.ir.test_text_mutations import SPACES, TEXT, mutated

JOB = ("--pservers", "a:6174,b:6174", "--trainers", "2", "--set", "min_block_size=4")
MODES = ("sync", "async", "half-async", "geo")
WORDS = ["%w", "%x", "param", "->", "{", "}", ":", "f32[2]", "f32[99999999999, 99999999999]", "{shape=[10000000000]}"]
WORDS += ["optimize(%w,", "backward", "^1", "sum", "while", "{sub_block=^0}", "# c", "lod=9", "rows", "@startup", "nan"]
WORDS += ["is_distributed=true,", "recv", "send(X=%x)", "reader", "1e39", "-1", "norole", *SPACES]
DATA = ROOT / "tests" / "data" / "program_desc"


@cache
def texts() -> list[str]:
    short = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "golden").glob("*.ir"))]
    return [TEXT.split("# a small module\n")[1], *(text for text in short if len(text) < 9000)]


def test_text(tmp_path: Path):
    path = tmp_path / "net.ir"

    def case(number: int) -> str:
        draw = random.Random(f"text {number}")
        text = draw.choice(texts())
        text = mutated(text, draw) if draw.random() < 0.5 else changed_lines(text, draw, WORDS)
        path.write_bytes(text.encode("utf-8", "surrogatepass" if draw.random() < 0.1 else "replace"))
        mode = draw.choice(MODES)
        verb = draw.choice(
            [
                ("verify", str(path)),
                ("fmt", "--check", str(path)),
                ("import", str(path)),
                ("diff", str(path), str(path)),
                ("plan", str(path), *JOB, "--mode", mode),
                ("compile", str(path), *JOB, "--mode", mode),
                ("export", str(path), "--to", "pb", "-o", str(tmp_path / "out")),
            ]
        )
        return f"{verb[0]}, {command(*verb)}"

    ends = campaign(case, cases(1200))
    assert len(ends) >= 12


def test_serialized_programs(tmp_path: Path):
    path, meta = tmp_path / "main.pb", tmp_path / "meta.json"
    programs = [file.read_bytes() for file in sorted(DATA.glob("*.pb"))]
    startup = str(DATA / "fit_a_line.startup.pb")
    told = json.loads((DATA / "fit_a_line.meta.json").read_text(encoding="utf-8"))
    whole = (DATA / "fit_a_line.main.pb").read_bytes()

    def case(number: int) -> str:
        draw = random.Random(f"desc {number}")
        if draw.random() < 0.2:  # what goes with a program
            path.write_bytes(whole)
            text = json_bytes(changed_json(told, draw))
            meta.write_bytes(text if draw.random() < 0.7 else changed_bytes(text, draw))
            verb = ("import", str(path), "--startup", startup, "--meta", str(meta))
        else:
            path.write_bytes(changed_bytes(draw.choice(programs), draw))
            verb = draw.choice(
                [
                    ("import", str(path)),
                    ("verify", str(path)),
                    ("diff", str(path), str(path)),
                    ("compile", str(path), "--startup", startup, *JOB, "--mode", draw.choice(MODES)),
                ]
            )
        return f"{verb[0]}, {command(*verb)}"

    ends = campaign(case, cases(700))
    assert len(ends) >= 5
