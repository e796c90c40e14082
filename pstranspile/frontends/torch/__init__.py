"""PyTorch models as programs: a model, its loss and its optimizer are exported by torch and read node by node.

`capture` exports a model with its loss as a graph of ATen operators, in which `packed` and `complex_numbers` have
packed sequences and complex numbers be tensors that a program has. `tracing` keeps the program while it is built,
`elements`, `tensors` and `networks` read the operators, `optimizers` states the updates, and `training` is what
`pstranspile.torch.trace` returns. Only `capture` and `training` need torch.
"""
