"""Runs any program on one machine.

`values` has the types of variables' values, `arithmetic` the functions that kernels calculate with, `kernels` the
computation of each op, and `run` the interpreter, which prepares a program once and then runs its steps. `large` has
sparse tables whose rows are created when they are trained, `files` reads and writes variables. None of these depends on
clusters or on the compiler.

Other wings use `run` (run, Scope), `values` (LoDTensor, SelectedRows), `large` (tables), `arithmetic`,
`arithmetic.loops` (compiled loops, also over the bytes of messages), `files` (load_variables, save_variables), and of
kernels `kernels.kernel`, `kernels.numeric`, `kernels.rows`, `kernels.programs.control`, `kernels.programs.io`,
`kernels.programs.modules`, `kernels.sequences.arrays` and `kernels.training.optimizer`. Read `run/prepared.py` first.
"""
