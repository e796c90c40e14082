"""Other formats: ProgramDesc protobuf with its metadata, ONNX, MLIR, drawings, and files of variables."""
