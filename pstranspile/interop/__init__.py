"""Other formats: ProgramDesc protobuf and the metadata that goes beside it."""
