"""Makes, reads and writes programs: layers and training in Python, and the formats of other frameworks.

`layers` and `autodiff` make programs in Python: layers, then gradients and updates. The other modules read and write
formats: ProgramDesc protobuf with its metadata (`program_desc`, `meta`), ONNX (`onnx`), MLIR and drawings (`texts`);
and the graphs that PyTorch exports of a model (`torch`). `python_places` keeps the lines of Python that made ops in
what is written.

Other wings use `loading` (load, loads, export), `layers` and `autodiff`, `program_desc`, `meta`, `onnx.importing`,
`onnx.writing`, `python_places`, `texts` and `torch`. Its own are `autodiff.averages` and `autodiff.schedules`. Read
`loading.py` first.
"""
