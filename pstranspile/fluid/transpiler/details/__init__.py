"""Fluid's `transpiler.details`: what its transpilers know of programs and of variables on servers."""

from __future__ import annotations

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.transpiler.details.checkport import wait_server_ready as wait_server_ready
from pstranspile.fluid.transpiler.details.program_utils import block_to_code as block_to_code
from pstranspile.fluid.transpiler.details.program_utils import delete_ops as delete_ops
from pstranspile.fluid.transpiler.details.program_utils import find_op_by_input_arg as find_op_by_input_arg
from pstranspile.fluid.transpiler.details.program_utils import find_op_by_output_arg as find_op_by_output_arg
from pstranspile.fluid.transpiler.details.program_utils import get_indent_space as get_indent_space
from pstranspile.fluid.transpiler.details.program_utils import op_to_code as op_to_code
from pstranspile.fluid.transpiler.details.program_utils import program_to_code as program_to_code
from pstranspile.fluid.transpiler.details.program_utils import variable_to_code as variable_to_code
from pstranspile.fluid.transpiler.details.ufind import UnionFind as UnionFind
from pstranspile.fluid.transpiler.details.vars_distributed import VarDistributed as VarDistributed
from pstranspile.fluid.transpiler.details.vars_distributed import VarsDistributed as VarsDistributed
from pstranspile.fluid.transpiler.details.vars_distributed import VarStruct as VarStruct

__getattr__ = names_of_fluid(__name__, globals())
