"""Runs any program on one machine.

`values` is what variables hold, `arithmetic` what is calculated with, `kernels` what each op computes, and `run` the
interpreter, which prepares a program once and then runs its steps. `large` holds sparse tables whose rows exist once
they are trained, `files` reads and writes variables. None of them knows of clusters or of the compiler.

Other wings use `run.prepared` (run), `run.scope` (Scope), `values` (LoDTensor, SelectedRows), `kernels.kernel` (kernel)
and `files.variables` (load_variables, save_variables). Read `run/prepared.py` first.
"""
