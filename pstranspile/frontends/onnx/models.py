"""The file of an ONNX model, opened and checked: its version, its weights and what ONNX infers of its values."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pstranspile.frontends.layers.draft import Refused
from pstranspile.frontends.onnx.graph import library
from pstranspile.frontends.onnx.reading import BYTES_A_BYTE, DEEPEST, FREE_BYTES, MOST_NODES, Symbols
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.values import Array

OLDEST = 13
"""The oldest version of ONNX's operators that is read: the first in which axes are inputs."""

NEWEST = 23
"""The newest version of ONNX's operators that is read."""

_SMALL = 8192
"""The most bytes of a constant that ONNX is given for inferring dims."""


def open_model(data: bytes, file: str, folder: str = "") -> Any:
    """The checked model, with its weights loaded from files in `folder`. Raises DiagnosticError."""
    onnx, checker = library(), library("onnx.checker")
    decode_error = importlib.import_module("google.protobuf.message").DecodeError
    try:
        model = onnx.load_from_string(data)
        _require_bounded_expansion(model, len(data))
        if folder:
            _require_external(model, folder, len(data))
            library("onnx.external_data_helper").load_external_data_for_model(model, folder)
        if any(not made.type.tensor_type.HasField("shape") for made in model.graph.output):
            model = onnx.shape_inference.infer_shapes(model)
        if any(not made.type.tensor_type.HasField("shape") for made in model.graph.output):
            onnx.shape_inference.infer_shapes(model, strict_mode=True)  # raises the error that names the node
        checker.check_model(model, full_check=True)
    except (
        *(decode_error, checker.ValidationError, onnx.shape_inference.InferenceError),
        *(ValueError, OSError, RuntimeError, UnicodeError),
    ) as problem:
        raise _model_error(f"no ONNX model, or a damaged one: {_line(problem)}", file) from None
    except MemoryError:
        raise _model_error("there is no memory for what it holds", file) from None
    version = version_of(model)
    if not OLDEST <= version <= NEWEST:
        message = f"the model has version {version}; versions {OLDEST} to {NEWEST} of ONNX's own operators are read"
        raise _model_error(message, file)
    return model


_MOST_OF_A_MODEL = (1 << 31) - 1
"""The most bytes of a model, including its tensors' data, that ONNX can check."""


def _require_external(model: Any, folder: str, held: int) -> None:
    """Raises ValueError for tensors in other files whose data have another size than their dims, or whose data together
    are more than twice as large as these files, as if many tensors named the same bytes. `held` is the size of the
    model's file.

    ONNX checks, when it opens the files, that they lie in the folder.
    """
    files: dict[tuple[int, int], int] = {}
    total = 0
    for tensor in _tensors(model.graph, [node for made in model.functions for node in made.node]):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = Path(folder, entries.get("location", ""))
        if not path.is_file():
            continue  # ONNX reports why the file can't be opened
        there = path.stat()
        files[there.st_dev, there.st_ino] = there.st_size
        numbers = [entries.get("offset") or "0", entries.get("length") or "0"]
        if not all(re.fullmatch("[0-9]{1,19}", number) for number in numbers):
            raise ValueError(f"the data of {tensor.name} begin, or end, at what is no number of bytes")
        offset, length = map(int, numbers)
        size = length if entries.get("length") else there.st_size - offset
        if size != _bytes_of(tensor):
            raise ValueError(f"{tensor.name} has {_bytes_of(tensor)} bytes by its dims, and {size} in {path.name}")
        total += size
    if total > 2 * sum(files.values()):
        raise ValueError(f"its tensors have {total} bytes in files of {sum(files.values())}: many have the same ones")
    if total + held > _MOST_OF_A_MODEL:
        raise ValueError(f"it has {total + held} bytes with the data of its tensors; models of 2 GiB are read")


def _tensors(graph: Any, more: Sequence[Any] = ()) -> Iterator[Any]:
    """Yields the tensors of a graph, of the graphs inside it, and of the nodes in `more`."""
    graphs, nodes = [graph], [*more]
    while graphs or nodes:
        if graphs:
            inner = graphs.pop()
            yield from inner.initializer
            nodes.extend(inner.node)
            continue
        for held in nodes.pop().attribute:
            yield from (held.t, *held.tensors)
            graphs.extend([*([held.g] if held.HasField("g") else []), *held.graphs])


def _bytes_of(tensor: Any) -> int:
    """The bytes of a tensor's data, by its dims and its type; -1 for a type without a size."""
    bits = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
    try:
        name = tensor.DataType.Name(tensor.data_type)
        width = bits.get(name) or 8 * library().helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (ValueError, KeyError, TypeError):
        return -1
    return -(-width * math.prod(tensor.dims) // 8)


class _Amount(NamedTuple):
    """The total number and size of nodes when each function is expanded where it is called."""

    nodes: int
    size: int


def _require_bounded_expansion(model: Any, held: int) -> None:
    """Raises ValueError for a model whose functions expand to too much, or contain themselves. `held` is the size of
    its file.
    """
    functions = {(made.domain, made.name): made for made in model.functions}
    amounts: dict[tuple[str, str], _Amount] = {}
    most = FREE_BYTES + BYTES_A_BYTE * held

    def amount(nodes: Any, depth: int) -> _Amount:
        if depth > DEEPEST:
            raise ValueError("its functions stand for themselves, or are nested too deep")
        count = size = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in functions and key not in amounts:
                amounts[key] = amount(functions[key].node, depth + 1)
            parts = [amounts.get(key, _Amount(1, node.ByteSize()))]
            parts += [amount(graph.node, depth + 1) for held in node.attribute for graph in (held.g, *held.graphs)]
            count += sum(part.nodes for part in parts)
            size += sum(part.size for part in parts)
            if count > MOST_NODES:
                raise ValueError(f"its functions stand for more than {MOST_NODES} nodes")
            if size > most:
                raise ValueError(f"its functions stand for more than {most} bytes")
        return _Amount(count, size)

    if functions:
        amount(model.graph.node, 0)


def _line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]


def _model_error(message: str, file: str) -> DiagnosticError:
    return DiagnosticError([error("onnx-model", message, Location(file))])


def version_of(model: Any) -> int:
    """The version of ONNX's own operators that a model uses; 0 if it names none."""
    versions = {part.domain: part.version for part in model.opset_import}
    return versions.get("", versions.get("ai.onnx", 0))


def values_of(model: Any) -> dict[str, Array]:
    """The constants in a model, by name. Raises Refused for constants that are damaged or no tensors."""
    for held in model.graph.sparse_initializer:
        raise Refused(f"{held.values.name} is a sparse tensor; Fluid's are dense")
    return {held.name: array_of(held) for held in model.graph.initializer}


_NEVER = 1e30
"""Weights are smaller than this; constants that hide elements from a softmax are larger."""

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
"""The metadata key under which torch describes the kind of a value in the module."""


def weights_of(model: Any, values: Mapping[str, Array]) -> set[str]:
    """The names of the values of a model that are trained: floats with dims, except those that the model excludes.

    Floats without dims are constants, such as the square root that attention divides by, and so are infinite values.
    """
    properties = {held.name: {part.key: part.value for part in held.metadata_props} for held in model.graph.value_info}
    return {
        name
        for name, array in values.items()
        if array.dtype.kind == "f"
        and array.ndim
        and properties.get(name, {}).get(_KIND, "PARAMETER") == "PARAMETER"
        and not (array.size and float(np.abs(array).max()) >= _NEVER)
    }


def array_of(tensor: Any) -> Array:
    """The value of a tensor of the model. Raises Refused for one whose data does not fit its dims or lies elsewhere."""
    onnx = library()
    if tensor.data_location == onnx.TensorProto.EXTERNAL and not tensor.HasField("raw_data"):
        raise Refused(f"{tensor.name} lies in a file beside the model; give from_onnx the folder of that file")
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as problem:
        raise Refused(f"{tensor.name} is damaged: {_line(problem)}") from None


_LARGE = frozenset(["Range", "If", "Loop", "Scan"])
"""Types of nodes of which ONNX would compute the elements, however many, to infer dims, or that may
contain such nodes.
"""


def symbols_of(model: Any) -> dict[str, Symbols]:
    """The dims of values, as ONNX infers them from the inputs' dims; equal dims share a name."""
    onnx = library()
    if model.functions:
        model = library("onnx.inliner").inline_local_functions(model)
    bare = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph = model.graph
    bare.graph.name = graph.name
    bare.graph.node.extend(node for node in graph.node if node.op_type not in _LARGE)
    bare.graph.output.extend(graph.output)
    value_infos = {held.name: held for held in graph.input}
    for initializer in graph.initializer:
        if initializer.ByteSize() < _SMALL:
            bare.graph.initializer.append(initializer)
        elif initializer.name not in value_infos:
            value_infos[initializer.name] = onnx.helper.make_tensor_value_info(
                initializer.name, initializer.data_type, initializer.dims
            )
    bare.graph.input.extend(value_infos.values())
    for at, value in enumerate(bare.graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"unnamed {at} {axis}"
    for made in bare.graph.output:
        made.type.tensor_type.ClearField("shape")
    _replace_costly_nodes(bare)
    inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    result: dict[str, Symbols] = {}
    for value_info in (*inferred.input, *inferred.value_info, *inferred.output):
        if value_info.type.HasField("tensor_type") and value_info.type.tensor_type.HasField("shape"):
            result[value_info.name] = tuple(
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                for dim in value_info.type.tensor_type.shape.dim
            )
    return result


_LONGEST = 4096
"""The most elements of one value that ONNX may handle one by one to infer dims."""

_ELEMENTS = 1 << 20
"""The most elements of all values together that ONNX may handle one by one to infer dims."""


def _replace_costly_nodes(bare: Any) -> None:
    """Replaces nodes for which ONNX would process many elements one by one to infer dims: their results become inputs.

    ONNX does so for nodes from which dims are computed, such as Concat, if a value has one dim, whatever its size.
    """
    onnx = library()
    inferred = onnx.shape_inference.infer_shapes(bare).graph
    types = {held.name: held for held in (*inferred.input, *inferred.value_info, *inferred.output)}
    for held in bare.graph.initializer:
        types[held.name] = onnx.helper.make_tensor_value_info(held.name, held.data_type, held.dims)
    version, left = version_of(bare), _ELEMENTS
    nodes: list[Any] = []
    for node in bare.graph.node:
        if _handles_elements(node.op_type, version):
            sizes = [_length(types.get(name)) for name in node.input if name]
            left -= sum(sizes)
            if max(sizes, default=0) > _LONGEST or left < 0:
                left += sum(sizes)
                bare.graph.input.extend(types[name] for name in node.output if name in types)
                continue
        nodes.append(node)
    del bare.graph.node[:]
    bare.graph.node.extend(nodes)


def _handles_elements(node_type: str, version: int) -> bool:
    try:
        return library().defs.get_schema(node_type, version).has_data_propagation_function
    except library().defs.SchemaError:
        return False


def _length(value: Any) -> int:
    """The number of elements of a value that ONNX may process one by one; if it is not known, more than `_LONGEST`."""
    if value is None or not value.type.tensor_type.HasField("shape"):
        return _LONGEST + 1
    dims = value.type.tensor_type.shape.dim
    if len(dims) != 1:
        return 0 if dims else 1
    return dims[0].dim_value if dims[0].HasField("dim_value") else _LONGEST + 1
