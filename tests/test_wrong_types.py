"""Arguments of a wrong type are refused with what would be right."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.fluid import DistributeTranspiler, DistributeTranspilerConfig

ROOT = Path(__file__).parents[1]
TEXT = """ir 1

program @main {
  block ^0 {
  }
}

program @startup {
  block ^0 {
  }
}
"""


class Seven:
    """A number like those of numpy: no int, but usable as one."""

    def __index__(self):
        return 7


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda module, job: ps.compile(module.main, job),
            "compile takes a Module, not a value of type Program; Module",
        ),
        (lambda module, job: ps.compile("net.ir", job), "not a value of type str; load gives that of a file"),
        (lambda module, job: ps.compile(module, {"pservers": 2}), "compile takes a Job, not a value of type dict; Job"),
        (lambda module, job: ps.verify(module.main), "verify takes a Module"),
        (lambda module, job: ps.dumps(3), "dumps takes a Module, not a value of type int"),
        (lambda module, job: ps.loads(b"ir 1"), "loads takes text, not a value of type bytes"),
        (lambda module, job: DistributeTranspiler({"mode": "pserver"}), "the config is a DistributeTranspilerConfig"),
        (
            lambda module, job: DistributeTranspiler().transpile(0, module, startup_program=module.startup),
            "transpile takes Programs, such as module.main, not a value of type Module",
        ),
    ],
)
def test_wrong_types(call, says):
    with pytest.raises(TypeError) as raised:
        call(ps.loads(TEXT), ps.Job(pservers=2))
    assert says in str(raised.value)


def test_a_misspelt_setting_of_fluid():
    config = DistributeTranspilerConfig()
    config.print_log = True  # has no effect
    assert config.job_settings() == {}
    with pytest.raises(AttributeError, match=r"has no 'slice_varup'; did you mean slice_var_up\?"):
        config.slice_varup = False


def test_numbers_of_other_types():
    job = ps.Job(pservers=Seven(), trainers=Seven(), min_block_size=Seven())
    assert (len(job.pservers), job.trainers, job.min_block_size) == (7, 7, 7)
    assert type(job.trainers) is int


def test_machines_that_are_not_there():
    module = ps.load(ROOT / "golden" / "linear_regression.ir")
    made = ps.compile(module, ps.Job(pservers=["a:1"], trainers=2))
    with pytest.raises(IndexError, match="no trainer 2; the job has 2, numbered from 0"):
        made.trainer(2)
    with pytest.raises(KeyError, match="no server at 'b:1'; the servers are a:1"):
        made.pserver("b:1")
