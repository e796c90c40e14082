"""What `print` shows of programs and their parts is their text."""

import subprocess
import sys
from pathlib import Path

import pstranspile as ps
from pstranspile.ir.model import FrozenMap

ROOT = Path(__file__).parents[2]
MODULE = ps.load(ROOT / "examples" / "regression.ir")


def test_a_module_is_shown_as_what_is_read_again():
    assert f"{MODULE}\n" == ps.dumps(MODULE)
    assert ps.loads(str(MODULE)) == MODULE
    assert repr(MODULE).startswith("<Module ")


def test_a_program_is_shown_under_the_name_of_its_ops():
    text = ps.dumps(MODULE)
    assert f"ir 1\n\n{MODULE['main']}\n\n{MODULE['startup']}\n" == text


def test_a_block_an_op_and_a_declaration_are_shown_as_lines():
    block = MODULE.main.main_block
    lines = str(block).split("\n")
    assert lines == [*map(str, block.vars.values()), *map(str, block.ops)]
    assert all(f"    {line}" in ps.dumps(MODULE).split("\n") for line in lines)
    assert str(block.ops[0]) == "mul(X=%x, Y=%w) -> Out=%xw"
    assert str(block.vars["w"]) == "param %w : f32[1000, 20]"


def test_a_machine_is_shown_as_its_file():
    role = ps.compile(MODULE, ps.Job(pservers=2, trainers=2)).trainer(0)
    assert f"{role}\n" == ps.dumps(role.module)
    assert repr(role).startswith("<Role trainer_0: ")


def test_what_has_no_text_is_shown_as_its_values():
    wrong = MODULE.main.main_block.ops[0]._replace(attrs=FrozenMap({"x_num_col_dims": 2**70}))
    assert str(wrong) == repr(wrong)


def test_what_is_shown_does_not_depend_on_what_was_imported(tmp_path: Path):
    (tmp_path / "main.pb").write_bytes(_serialized())
    script = "import sys, pstranspile as ps; print(ps.load(sys.argv[1]).main.main_block.ops[0])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, tmp_path / "main.pb"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "mul(X=%x, Y=%w) -> Out=%xw\n", done.stderr


def _serialized() -> bytes:
    from pstranspile.frontends.program_desc import program_to_bytes

    return program_to_bytes(MODULE.main)


def test_parts_of_the_package_are_there_without_an_import_of_their_own():
    script = "import pstranspile as ps; print(ps.layers.Draft.__name__, ps.autodiff.Adam.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "Draft Adam\n", done.stderr
