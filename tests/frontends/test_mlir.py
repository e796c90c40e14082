"""Programs in MLIR's generic form: parsers of others take them, and nothing of a program is left out."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from pstranspile import Module, load, loads
from pstranspile.frontends.loading import load_bytes
from pstranspile.frontends.texts import mlir_text
from pstranspile.tools.cli import main
from tests.frontends.recorded import FILES

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = [*sorted((ROOT / "examples").glob("*.ir")), *sorted((ROOT / "golden").glob("*.ir")), *FILES]


def parsed(text: str) -> Any:
    """What xdsl reads."""
    xdsl = pytest.importorskip("xdsl.parser", reason="xdsl is not installed")
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    module = xdsl.Parser(context, text).parse_module()
    module.verify()
    return module


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_parsers_of_others_take_every_program(path: Path):
    module = load(path)
    text = mlir_text(module)
    count = sum(len(block.ops) for program in module.programs.values() for block in program.blocks)
    own = len(re.findall(r'"fluid\.(?:variable|program|block)"', text))
    assert len(re.findall(r'"fluid\.\w+"\(', text)) == count + own
    assert sum(1 for _ in parsed(text).walk()) == count + own + 1


def test_mlir_s_own_parser_takes_programs():
    mlir = pytest.importorskip("jaxlib.mlir.ir", reason="jaxlib is not installed")
    with mlir.Context() as context:
        context.allow_unregistered_dialects = True
        for path in PROGRAMS:
            assert mlir.Module.parse(mlir_text(load(path))).operation.verify(), path.name


def of(body: str) -> Module:
    return loads(f"ir 1\nprogram @main {{\n  block ^0 {{\n{body}  }}\n}}\n")


def test_a_variable_that_is_written_again_is_another_value():
    text = mlir_text(of("    temp %x : f32[-1, 3]\n    relu(X=%x) -> Out=%x\n    relu(X=%x) -> Out=%x\n"))
    assert re.findall(r'(%\d) = "fluid.(\w+)"\((.*?)\)', text) == [
        ("%0", "variable", ""),
        ("%1", "relu", "%0"),
        ("%2", "relu", "%1"),
    ]
    assert "(tensor<?x3xf32>) -> (tensor<?x3xf32>)" in text


def test_names_and_numbers_of_any_kind_are_read():
    body = '    temp %"a\\"\\\\é" : f32[2]\n    clip(X=%"a\\"\\\\é") -> Out=%"a\\"\\\\é" {max=inf, min=1e-30}\n'
    text = mlir_text(of(body))
    assert r'"a\22\5C\C3\A9"' in text
    assert "max = 0x7F800000 : f32" in text
    parsed(text)


def test_a_block_s_own_variable_is_not_that_of_the_block_around_it():
    data = gzip.decompress((ROOT / "tests" / "data" / "programs" / "static_rnn.pb.gz").read_bytes())
    parsed(mlir_text(load_bytes(data, "static_rnn.pb", report=list)))


def test_the_command_writes_one_file(tmp_path: Path):
    assert main(["export", str(ROOT / "examples" / "regression.ir"), "--to", "mlir", "-o", str(tmp_path / "out")]) == 0
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["module.mlir"]
