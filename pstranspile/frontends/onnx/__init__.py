"""ONNX models: inference programs as such, and forward networks from such.

`writing.py` writes a model, with a writer for each op type. `importing.py` reads one, with a reader for each of ONNX's
in the files `read_*.py`.
"""
