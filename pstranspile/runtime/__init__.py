"""Runs any program on one machine.

`values` is what variables hold, `arithmetic` what is calculated with, `kernels` what each op computes, and `run` the
interpreter, which prepares a program once and then runs its steps. `large` holds sparse tables whose rows exist once
they are trained, `files` reads and writes variables. None of them knows of clusters or of the compiler.

Other wings use `run` (run, Scope), `values` (LoDTensor, SelectedRows), `large` (tables), `arithmetic` and `files`
(load_variables, save_variables), and of kernels `kernels.kernel`, `kernels.context`, `kernels.rows`,
`kernels.programs.control`, `kernels.programs.io`, `kernels.programs.modules`, `kernels.sequences.arrays` and
`kernels.training.optimizer`. Its own is `arithmetic.loops`. Read `run/prepared.py` first.
"""
