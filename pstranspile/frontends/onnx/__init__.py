"""ONNX models: writes inference programs as models, and reads models as forward networks.

`writing.py` writes a model, with a writer for each op type. `importing.py` reads one, with a reader for each of ONNX's
in the files `read_*.py`.
"""
