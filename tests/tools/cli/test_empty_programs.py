"""Modules that lack programs, and programs that lack blocks: every command says so, or does what there is to do."""

from pathlib import Path

import pytest

from pstranspile.tools.cli import main

EMPTY = "program @{} {{\n}}\n"
BLOCK = "program @{} {{\n  block ^0 {{\n  }}\n}}\n"
TEXTS = {
    "no program": "",
    "main without a block": EMPTY.format("main"),
    "main and start-up without a block": EMPTY.format("main") + EMPTY.format("startup"),
    "start-up without a block": BLOCK.format("main") + EMPTY.format("startup"),
    "main alone": BLOCK.format("main"),
    "another program without a block": EMPTY.format("other"),
    "nothing in any block": BLOCK.format("main") + BLOCK.format("startup"),
}
JOB = ("--pservers", "2", "--trainers", "2")
COMMANDS = (
    *(
        ("verify",),
        ("verify", "--meta", "meta.json"),
        ("fmt",),
        ("diff", "net.ir"),
        ("grad", "--loss", "x", "--optimizer", "sgd"),
    ),
    *(("plan", *JOB), ("compile", *JOB), ("compile", *JOB, "--mode", "geo"), ("explain", *JOB, "--op", "1")),
    *(("compile", "--mode", "local-sgd", "--trainers", "a:1,b:1"), ("run",), ("run", *JOB), ("check", *JOB)),
    *(
        ("report", *JOB, "-o", "page.html"),
        ("export", "--to", "pb", "-o", "pb"),
        ("export", "--to", "onnx", "-o", "onnx"),
    ),
    *(("export", "--to", kind, "-o", "drawn") for kind in ("mlir", "dot", "mermaid")),
)


@pytest.mark.parametrize("name", TEXTS)
def test_every_command_ends_well(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text("ir 1\n\n" + TEXTS[name])
    Path("meta.json").write_text('{"random_seed": 3, "params": [{"name": "w"}], "startup_parameter_order": ["w"]}')
    for verb, *options in COMMANDS:
        try:
            status = main([verb, "net.ir", *options])
        except SystemExit as ended:
            status = ended.code
        said = capsys.readouterr().err
        assert status in (0, 1, 2), (verb, options, said)
        assert status == 0 or said, (verb, options)
