"""The folder of `profiler_pb2`, where Fluid has it."""
