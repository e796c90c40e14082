"""What a server's start-up program declares."""

import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.ir.types import DType
from pstranspile.ops.textual import parse

NET = """ir 1
program @main {{
  block ^0 {{
    temp  %x : f32[-1, 4]
    param %w : f32[4, 1]
    state %decay : {declared}[1]
    state %rate : f32[1]
    temp  %out : f32[-1, 1]
    temp  %loss : f32[1]
    temp  %loss@GRAD : f32[1]
    temp  %out@GRAD : f32[-1, 1]
    temp  %w@GRAD : f32[4, 1]
    temp  %scaled : f32[1]

    mul(X=%x, Y=%w) -> Out=%out
    mean(X=%out) -> Out=%loss : forward|loss
    fill_constant -> Out=%loss@GRAD {{shape=[1], value=1.0}} : backward|loss
    mean_grad(X=%out, Out@GRAD=%loss@GRAD) -> X@GRAD=%out@GRAD : backward
    mul_grad(X=%x, Y=%w, Out@GRAD=%out@GRAD) -> Y@GRAD=%w@GRAD : backward(%w, %w@GRAD)
    assign_value -> Out=%decay {{dtype=5, fp32_values=[0.5], shape=[1]}} : lr_sched
    elementwise_mul(X=%rate, Y=%decay) -> Out=%scaled : lr_sched
    sgd(Param=%w, Grad=%w@GRAD, LearningRate=%scaled) -> ParamOut=%w : optimize(%w, %w@GRAD)
  }}
}}
program @startup {{
  block ^0 {{
    param %w : f32[4, 1]
    state %decay : f32[1]
    state %rate : f32[1]

    uniform_random -> Out=%w {{shape=[4, 1], min=-1.0, max=1.0}}
    fill_constant -> Out=%decay {{shape=[1], value=0.9}}
    fill_constant -> Out=%rate {{shape=[1], value=0.1}}
  }}
}}
"""


@pytest.mark.parametrize("declared", [DType.INT64, DType.FP32])
def test_a_variable_has_the_element_type_that_its_initialiser_makes(declared: DType):
    made = compile(parse(NET.format(declared=declared.text)), Job(pservers=1, trainers=1)).pserver("127.0.0.1:6174")
    assert made.startup.main_block.vars["decay"].dtype is DType.FP32
    assert made.main.main_block.vars["decay"].dtype is declared
