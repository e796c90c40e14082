import gzip
import io
import json
import subprocess
import sys
import types
import warnings

import pytest

from pstranspile.frontends.loading import load, load_bytes, loads
from pstranspile.frontends.program_desc import program_to_bytes
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.model import ParameterInfo
from tests.frontends.recorded import FILES, FOLDER

MAIN_PB, STARTUP_PB = FOLDER / "fit_a_line.main.pb", FOLDER / "fit_a_line.startup.pb"
META = FOLDER / "fit_a_line.meta.json"
TEXT = """ir 1

program @main {
  block ^0 {
    param %w : f32[1]
    state %lr : f32[1]
  }
}
"""
SCALES = TEXT.replace("  }\n}", "    sgd(Param=%w, Grad=%w, LearningRate=%lr) -> ParamOut=%w\n  }\n}")
STARTUP_TEXT = TEXT.replace("@main", "@startup")


def refused(*arguments, **options) -> Diagnostic:
    with pytest.raises(DiagnosticError) as raised:
        load(*arguments, **options)
    return raised.value.diagnostics[0]


def write(folder, name: str, content: str | bytes):
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_program_descs_with_meta():
    module = load(MAIN_PB, startup=STARTUP_PB, meta=META)
    assert list(module.programs) == ["main", "startup"]
    assert module.main.random_seed == 1
    assert module.startup is not None
    assert module.startup.random_seed == 1
    assert [var.name for var in module.startup.parameters()] == ["fc_0.w_0", "fc_0.b_0"]
    assert module.main.main_block.ops[0].origin.program == "main"
    assert module.startup.main_block.ops[0].origin.program == "startup"


def test_main_and_startup_exchanged(tmp_path):
    finding = refused(STARTUP_PB, startup=MAIN_PB)
    assert finding.code == "input-startup"
    assert finding.location.file == str(MAIN_PB)
    assert "the two files are exchanged" in finding.message
    assert str(STARTUP_PB) in finding.message
    forward = "ir 1\nprogram @a {\n  block ^0 {\n    param %w : f32[1]\n    temp %y : f32[1]\n    OP\n  }\n}\n"
    makes = write(
        tmp_path, "makes.ir", forward.replace("OP", "fill_constant -> Out=%w {shape=[1]}").replace("@a", "@main")
    )
    uses = write(tmp_path, "uses.ir", forward.replace("OP", "relu(X=%w) -> Out=%y"))
    assert "exchanged" in refused(makes, startup=uses).message
    assert load(uses.with_name("makes.ir")).main.main_block.ops[0].type == "fill_constant"


def test_programs_of_one_input_exchanged(tmp_path):
    body = "  block ^0 {\n    param %w : f32[1]\n    temp %y : f32[1]\n    OP\n  }\n}\n"
    text = "ir 1\nprogram @main {\n" + body.replace("OP", "fill_constant -> Out=%w {shape=[1]}")
    text += "program @startup {\n" + body.replace("OP", "relu(X=%w) -> Out=%y")
    given = write(tmp_path, "exchanged.ir", text)
    code = f"from pstranspile.ops.textual import parse\ndef made():\n    return parse({text!r}, 'made')\n"
    python = str(write(tmp_path, "made.py", code)) + ":made"
    for name in (str(given), python):
        finding = refused(name)
        assert (finding.code, finding.location.file) == ("input-startup", name)
        assert finding.message == "@startup uses what @main initialises: the two programs are exchanged"
        for verb in (["verify", name], ["compile", name, "--pservers", "1", "-o", str(tmp_path / "out")]):
            done = subprocess.run([sys.executable, "-m", "pstranspile", *verb], capture_output=True, text=True)
            assert done.returncode == 1, done.stderr
            assert "the two programs are exchanged" in done.stderr
    with pytest.raises(DiagnosticError, match="exchanged"):
        loads(text)


def test_parameters_without_meta():
    module = load(str(MAIN_PB), startup=str(STARTUP_PB))
    assert {var.name: var.parameter for var in module.main.parameters()} == {
        "fc_0.w_0": ParameterInfo(),
        "fc_0.b_0": ParameterInfo(),
    }
    assert module.startup is not None
    assert {var.name for var in module.startup.parameters()} == {"fc_0.w_0", "fc_0.b_0"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_content_tells_the_format_not_the_name(path, tmp_path):
    copy = write(tmp_path, "__model__", path.read_bytes())
    assert program_to_bytes(load(copy).main) == program_to_bytes(load(path).main)


def test_text(tmp_path):
    path = write(tmp_path, "net.pb", TEXT)
    module = load(path)
    assert module == loads(TEXT)
    assert [var.name for var in module.main.parameters()] == ["w"]
    assert module.source is not None
    assert module.source.file == str(path)
    assert load(write(tmp_path, "bom.ir", b"\xef\xbb\xbf" + TEXT.encode())) == module


def test_text_says_itself_what_is_a_parameter(tmp_path):
    declared = TEXT.replace("  }\n}", "    sgd(Param=%lr, Grad=%w, LearningRate=%lr) -> ParamOut=%lr\n  }\n}")
    module = load(write(tmp_path, "net.ir", declared))
    assert [var.name for var in module.main.parameters()] == ["w"]


def test_stdin(monkeypatch):
    for data, count in ((TEXT.encode(), 1), (MAIN_PB.read_bytes(), 2), (b"", None)):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(data)))
        if count is None:
            assert refused("-").code == "input-empty"
        else:
            assert len(load("-").main.parameters()) == count


def test_startup_from_text(tmp_path):
    main = write(tmp_path, "main.ir", TEXT)
    for text in (STARTUP_TEXT, TEXT, TEXT + STARTUP_TEXT.removeprefix("ir 1\n")):
        module = load(main, startup=write(tmp_path, "startup.ir", text))
        assert list(module.programs) == ["main", "startup"]
        assert module.startup == loads(STARTUP_TEXT).startup
    mixed = load(main, startup=STARTUP_PB)
    assert mixed.startup is not None
    assert len(mixed.startup.main_block.ops) == 3


def test_startup_given_twice(tmp_path):
    both = write(tmp_path, "both.ir", TEXT + STARTUP_TEXT.removeprefix("ir 1\n"))
    found = refused(both, startup=STARTUP_PB)
    assert found.code == "input-startup"
    assert "both.ir holds a program @startup already" in found.message


def test_startup_file_without_startup_program(tmp_path):
    several = write(tmp_path, "several.ir", TEXT + TEXT.replace("@main", "@test").removeprefix("ir 1\n"))
    found = refused(MAIN_PB, startup=several)
    assert found.code == "input-startup"
    assert "@main, @test" in found.message


def test_files_that_can_not_be_read(tmp_path):
    assert refused(tmp_path / "none.ir").message == "there is no such file"
    assert refused(tmp_path).message == "this is a folder, a file is needed"
    assert refused("a\0b").code == "input-unreadable"
    assert refused(write(tmp_path, "file", "x") / "below").code == "input-unreadable"
    assert refused(MAIN_PB, startup=tmp_path / "none").code == "input-unreadable"
    assert refused(MAIN_PB, meta=tmp_path / "none").code == "input-unreadable"
    assert refused(write(tmp_path, "empty.ir", "")).code == "input-empty"
    assert refused(MAIN_PB, meta=write(tmp_path, "empty.json", "")).code == "input-empty"
    looped = tmp_path / "loop"
    looped.symlink_to(looped)
    assert refused(looped).code == "input-unreadable"


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def denied(path, most):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pstranspile.frontends.loading.read_named", denied)
    assert "may not be read" in refused(tmp_path / "secret.ir").message


def test_input_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("pstranspile.frontends.loading.LARGEST", 100)
    assert refused(write(tmp_path, "long.ir", "#" * 101)).code == "input-large"
    assert refused(write(tmp_path, "enough.ir", "#" * 100)).code != "input-large"


def test_content_that_is_neither(tmp_path):
    junk = refused(write(tmp_path, "junk.ir", b"\x7fELF\x02\x01" * 10))
    assert junk.code == "input-format"
    assert "byte 0x7f" not in junk.message
    assert "byte 0x02 at offset 4" in junk.message
    assert "gzip" in refused(write(tmp_path, "x.pb.gz", gzip.compress(b"abc"))).message
    assert "UTF-16" in refused(write(tmp_path, "x.ir", TEXT.encode("utf-16"))).message


def test_text_that_is_not_utf8(tmp_path):
    found = refused(write(tmp_path, "latin.ir", TEXT.replace("ir 1", "ir 1\n# café").encode("latin-1")))
    assert found.code == "input-encoding"
    assert "byte 0xe9 at offset 10, line 2" in found.message
    bad = refused(MAIN_PB, meta=write(tmp_path, "m.json", b'{"a": "\xff"}'))
    assert (bad.code, "offset 7" in bad.message) == ("input-encoding", True)


def test_a_cut_program_desc(tmp_path):
    found = refused(write(tmp_path, "cut.pb", MAIN_PB.read_bytes()[:-100]))
    assert found.code == "desc-damaged"
    assert found.location is not None
    assert found.location.file.endswith("cut.pb")


def test_warnings_go_where_the_caller_says(tmp_path):
    meta = write(tmp_path, "meta.json", json.dumps({"params": [{"name": "fc_0.w"}]}))
    seen: list[Diagnostic] = []
    load(MAIN_PB, meta=meta, report=seen.extend)
    assert [found.code for found in seen] == ["meta-unknown-parameter"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(MAIN_PB, meta=meta)
    assert ["meta-unknown-parameter" in str(w.message) for w in caught] == [True]


def test_load_bytes_names_the_data():
    with pytest.raises(DiagnosticError) as raised:
        load_bytes(b"\x0a\x05\x08\x00", "from the network")
    assert str(raised.value).startswith("from the network: error[desc-damaged]")


@pytest.mark.parametrize("name", ["fit_a_line.main.pb", "while_loop.main.pb", "text"])
def test_the_main_program_is_not_taken_for_its_startup_program(name, tmp_path):
    data = SCALES.encode() if name == "text" else (FOLDER / name).read_bytes()
    main, copy = (tmp_path / each for each in ("main", "startup"))
    main.write_bytes(data)
    copy.write_bytes(data)
    for startup in (main, copy):
        found = refused(main, startup=startup)
        assert found.code == "input-startup"
        assert f"it is the same program as {main}" in found.message
