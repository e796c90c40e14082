"""What `fluid.load` and `load_program_state` take of files that `fluid.save` did not write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile import fluid
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values.encoding import to_bytes, write_values
from tests.fluid.running import fresh


@pytest.fixture
def program() -> Any:
    program, startup = fluid.Program(), fluid.Program()
    scope = fluid.core.Scope()
    with fluid.unique_name.guard(), fluid.scope_guard(scope), fluid.program_guard(program, startup):
        fluid.layers.fc(fluid.data("x", [-1, 3]), 2, name="layer")
        fluid.Executor(fluid.CPUPlace()).run(startup)
        yield program


def held() -> Any:
    found = fluid.global_scope().find_var("layer.w_0")
    assert found is not None
    return found.get_tensor()


def test_one_file_of_all_variables_is_read_with_their_list(program: Any, tmp_path: Path):
    exe, variables = fluid.Executor(fluid.CPUPlace()), fluid.io.get_program_persistable_vars(program)
    fluid.io.save_persistables(exe, str(tmp_path), program, filename="all")
    path, before = str(tmp_path / "all"), np.array(held())
    state = fluid.load_program_state(path, var_list=variables)
    np.testing.assert_array_equal(state["layer.w_0"], before)
    held().set(np.zeros_like(before), fluid.CPUPlace())
    fluid.load(program, path, exe, variables)
    np.testing.assert_array_equal(np.array(held()), before)
    with pytest.raises(ValueError, match="one file, which holds no names"):
        fluid.load(program, path, exe)
    with pytest.raises(ValueError, match="needs the executor"):
        fluid.load(program, path, None, variables)
    with pytest.raises(RuntimeError, match="is not of these variables"):
        fluid.load(program, path, exe, variables[:1])
    with pytest.raises(LookupError, match="the program has no other"):
        fluid.load(fluid.Program(), path, exe, [program.global_block().create_var(name="other", shape=[1])])
    with pytest.raises(TypeError, match="not their names"):
        fluid.load_program_state(path, var_list=["layer.w_0"])


def test_a_folder_may_hold_other_files(program: Any, tmp_path: Path):
    exe, before = fluid.Executor(fluid.CPUPlace()), np.array(held())
    fluid.io.save_params(exe, str(tmp_path), program)
    (tmp_path / "notes.txt").write_text("not a variable")
    held().set(np.zeros_like(before), fluid.CPUPlace())
    fluid.load(program, str(tmp_path), exe)
    np.testing.assert_array_equal(np.array(held()), before)
    with pytest.raises(RuntimeError, match=r"notes\.txt"):
        fluid.load_program_state(str(tmp_path))
    program.global_block().var("layer.w_0").desc.set_shape([4, 2])
    with pytest.raises(RuntimeError, match="has the dims"):
        fluid.load(program, str(tmp_path), exe)
    with pytest.raises(ValueError, match="neither"):
        fluid.load(program, str(tmp_path / "none"), exe)


def test_servers_load_what_a_trainer_of_fluid_has_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Powers of beta stand in their files once for each server, and learning rates have none."""
    with fresh():
        weight = fluid.ParamAttr("w", fluid.initializer.Constant(1.0))
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 2, param_attr=weight, bias_attr=False))
        fluid.optimizer.Adam(0.5).minimize(loss)
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, pservers="127.0.0.1:6170", trainers=1)
        program = transpiler.get_pserver_program("127.0.0.1:6170")
        executor = fluid.Executor()
        executor.run(transpiler.get_startup_program("127.0.0.1:6170", program))
        kept = {"w": np.full((3, 2), 2.0), "w_moment1_0": np.ones((3, 2)), "w_moment2_0": np.ones((3, 2))}
        for name, value in kept.items():
            write_values(tmp_path / name, value.astype("float32"))
        for name in ("w_beta1_pow_acc_0", "w_beta2_pow_acc_0"):
            (tmp_path / name).write_bytes(to_bytes(np.float32([0.25])) + np.float32([0.5]).tobytes())
        fluid.io.load_persistables(executor, str(tmp_path), program)
        assert capsys.readouterr().err == "learning_rate_0: no files, start-up values are kept\n"
        values = {name: fluid.executor._fetch_var(name) for name in ("w", "w_beta1_pow_acc_0", "learning_rate_0")}
        assert [value.ravel()[0] for value in values.values()] == [2.0, 0.25, 0.5]
        (tmp_path / "w_moment1_0").unlink()
        with pytest.raises(DiagnosticError, match=r"w_moment1_0: error.*can.t be read"):
            fluid.io.load_persistables(executor, str(tmp_path), program)
