"""Fluid's `io`: writes and reads variables and models in files of the same layout as Fluid's, and pickled ones.

`fluid.save` pickles a program's persistable variables; `save_vars` and similar functions write a file for each
variable, or one for all.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.inference import MODEL, inference_program
from pstranspile.fluid.executor import global_scope, plain_program
from pstranspile.fluid.framework import default_main_program, program_guard
from pstranspile.fluid.graph.program import Program
from pstranspile.fluid.graph.values import VarType, several
from pstranspile.fluid.graph.variable import Parameter, Variable
from pstranspile.fluid.layers.nn import scale
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.paddle.reader import ComposeNotAligned as ComposeNotAligned
from pstranspile.fluid.paddle.reader import batch as batch
from pstranspile.fluid.paddle.reader import buffered as buffered
from pstranspile.fluid.paddle.reader import cache as cache
from pstranspile.fluid.paddle.reader import chain as chain
from pstranspile.fluid.paddle.reader import compose as compose
from pstranspile.fluid.paddle.reader import firstn as firstn
from pstranspile.fluid.paddle.reader import map_readers as map_readers
from pstranspile.fluid.paddle.reader import multiprocess_reader as multiprocess_reader
from pstranspile.fluid.paddle.reader import shuffle as shuffle
from pstranspile.fluid.paddle.reader import xmap_readers as xmap_readers
from pstranspile.fluid.reader import BatchSampler as BatchSampler
from pstranspile.fluid.reader import DataLoader as DataLoader
from pstranspile.fluid.reader import Dataset as Dataset
from pstranspile.fluid.reader import PyReader as PyReader
from pstranspile.fluid.reader import default_collate_fn as default_collate_fn
from pstranspile.fluid.running.distributed_io import (
    added_variables,
    held_by_servers,
    load_slices,
    loads_slices,
    save_from_servers,
    save_with_servers,
    saves_with_servers,
    values_with_servers,
    warn_of_filename,
    whole_heights,
    whole_tables,
    with_heights,
    with_own_lookups,
)
from pstranspile.fluid.running.large_tables import load_tables, set_whole_values, whole_values
from pstranspile.frontends.python_places import in_script
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Program as FrozenProgram
from pstranspile.ir.user_warnings import warn
from pstranspile.runtime.files.variables import load_variables, save_variables
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values.encoding import read_combined, read_tensor

# The inputs and outputs of a saved model.


def scaled_targets(program: Any, given: Any) -> list[str]:
    """Adds to the program, for each target, a variable that is the target times 1, as Fluid does; returns the names of
    these.

    Targets are variables or their names. If the program lacks a target, or one is listed twice, the targets' own names
    are returned, which the function that cuts the program then refuses.
    """
    names = [item.name if isinstance(item, Variable) else str(item) for item in (given if several(given) else [given])]
    block = program.global_block()
    if len(set(names)) < len(names) or not all(block.has_var(name) for name in names):
        return names
    with program_guard(program):
        return [scale(block.var(name), name=f"save_infer_model/scale_{at}").name for at, name in enumerate(names)]


def prepend_feed_ops(
    inference_program: Program, feed_target_names: Sequence[str], feed_holder_name: str = "feed"
) -> None:
    """Inserts ops in front that feed these variables, the first variable's last."""
    if not feed_target_names:
        return
    block = inference_program.global_block()
    holder = block.create_var(name=feed_holder_name, type=VarType.FEED_MINIBATCH, persistable=True)
    for column, name in enumerate(feed_target_names):
        block.prepend_op("feed", {"X": [holder]}, {"Out": [block.var(name)]}, {"col": column})


def append_fetch_ops(
    inference_program: Program, fetch_target_names: Sequence[str], fetch_holder_name: str = "fetch"
) -> None:
    """Appends ops that fetch these variables."""
    block = inference_program.global_block()
    holder = block.create_var(name=fetch_holder_name, type=VarType.FETCH_LIST, persistable=True)
    for column, name in enumerate(fetch_target_names):
        block.append_op("fetch", {"X": [name]}, {"Out": [holder]}, {"col": column})


class _Pickler(pickle._Pickler):  # pyright: ignore[reportPrivateUsage]
    """Writes pickles that the numpy of Fluid's time can read: numpy 2 renamed the module of the functions that make
    arrays.

    It extends the standard library's pickler in Python, in which the name of a function can be chosen, and the data of
    an array are written unchanged.
    """

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Writes the name of a function or class, with numpy's older module names."""
        module: str = getattr(obj, "__module__", None) or ""
        if not module.startswith("numpy._core."):
            super().save_global(obj, name)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
            return
        older: str = module.replace("numpy._core.", "numpy.core.", 1)
        own: Any = self
        if own.proto < STACKED:
            own.write(pickle.GLOBAL + f"{older}\n{name or obj.__qualname__}\n".encode())
        else:
            own.save(older)
            own.save(name or obj.__qualname__)
            own.write(pickle.STACK_GLOBAL)
        own.memoize(obj)


STACKED = 4
"""The first protocol of pickles in which names of functions are texts and the data of arrays are plain bytes."""

OLD_PROTOCOL = 2
"""The protocol of the pickles that Fluid writes, in which data of arrays are texts, half as long again
as their bytes.
"""


def write_pickled(path: str, arrays: dict[str, Any], protocol: int) -> None:
    """Writes arrays to a file as a pickle that the numpy of Fluid's time can read."""
    with open(path, "wb") as file:
        _Pickler(file, protocol).dump(arrays)


class _Arrays(pickle.Unpickler):
    """Reads pickles of arrays, and refuses all other objects."""

    def find_class(self, module: str, name: str) -> Any:
        if module in (
            "numpy",
            "numpy.core.multiarray",
            "numpy._core.multiarray",
            "collections",
            "_codecs",
            "numpy.core.numeric",
        ) and name in ("ndarray", "dtype", "_reconstruct", "scalar", "OrderedDict", "encode", "_frombuffer"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"the file wants {module}.{name}; files of parameters hold arrays only")


def _load_pickle(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return _Arrays(file, encoding="latin1").load()


def without_ending(model_path: str) -> str:
    """A path without the suffixes that `fluid.save` adds."""
    return model_path.removesuffix(".pdparams").removesuffix(".pdopt").removesuffix(".pdmodel")


def saved_state(model_path: str) -> dict[str, Any] | None:
    """The arrays that `fluid.save` wrote, by name; None if there is no file of it."""
    if not os.path.isfile(model_path + ".pdparams"):
        return None
    state = _load_pickle(model_path + ".pdparams")
    if os.path.isfile(model_path + ".pdopt"):
        state |= _load_pickle(model_path + ".pdopt")
    return state


def older_state(model_path: str, names: Iterable[str] | None) -> dict[str, Any]:
    """The arrays in a folder with a file for each variable, or in one file with all variables.

    `names` are the variables to read, None for all in a folder. Raises ValueError for a path that does not exist, and
    for one file without `names`, because it has none; RuntimeError where the files have other contents.
    """
    path = Path(model_path)
    try:
        if path.is_file():
            if names is None:
                raise ValueError(f"{model_path} is one file, which holds no names: give its variables as var_list")
            values: dict[str, Any] = dict(read_combined(path, sorted(names)))
        elif path.is_dir():
            there = {str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if file.is_file()}
            there.pop(MODEL, None)
            wanted = there if names is None else [name for name in sorted(names) if name in there]
            values = {name: read_tensor(there[name]) for name in wanted}
        else:
            raise ValueError(f"there are neither {model_path}.pdparams nor a file or folder {model_path}")
    except DiagnosticError as problem:
        raise RuntimeError(f"{model_path} is not of these variables: {problem}") from None
    return {name: value if isinstance(value, np.ndarray) else value.data for name, value in values.items()}


Chosen = Callable[[Variable], bool]
_NOT_KEPT = (VarType.FEED_MINIBATCH, VarType.FETCH_LIST, VarType.READER, VarType.RAW, VarType.STEP_SCOPES)


def is_parameter(var: Variable) -> bool:
    """Whether a variable is a parameter."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether a variable is kept from run to run, and has a value that can be saved in a file."""
    return var.persistable and var.type not in _NOT_KEPT


def is_belong_to_optimizer(var: Variable) -> bool:
    """Whether a variable is kept from run to run, and is not a parameter."""
    return is_persistable(var) and not isinstance(var, Parameter)


def _selected_names(program: Program, vars: Any, predicate: Chosen | None) -> list[str]:
    if vars is None:
        return [var.name for var in program.list_vars() if predicate is None or predicate(var)]
    return [var.name if isinstance(var, Variable) else str(var) for var in vars]


def save_vars(
    executor: Any,
    dirname: str | None,
    main_program: Any = None,
    vars: Any = None,
    predicate: Chosen | None = None,
    filename: str | None = None,
) -> bytes | None:
    """Writes variables to a file each in the folder, or all to the file `filename` in it.

    With neither a folder nor a file it returns the bytes of such a file.
    """
    program = plain_program(main_program)
    names = _selected_names(program, vars, predicate)
    if dirname is None and filename is None:
        with TemporaryDirectory() as folder:
            _write(program.freeze(), names, folder, "all")
            return Path(folder, "all").read_bytes()
    _write(program.freeze(), names, dirname, filename)
    return None


def _write(
    program: FrozenProgram,
    names: Iterable[str],
    dirname: str | None,
    filename: str | None,
    values: Mapping[str, Any] | None = None,
) -> None:
    scope, held = global_scope().core if values is None else values, list(dict.fromkeys(names))
    if filename is None:
        save_variables(program, scope, dirname or ".", names=held)
    else:
        os.makedirs(dirname or ".", exist_ok=True)
        save_variables(program, scope, Path(dirname or ".", filename), layout="combined", names=held)


def save_params(
    executor: Any, dirname: str | None, main_program: Any = None, filename: str | None = None
) -> bytes | None:
    """Writes the parameters, as `save_vars` does."""
    return save_vars(executor, dirname, main_program, None, is_parameter, filename)


def save_persistables(
    executor: Any, dirname: str | None, main_program: Any = None, filename: str | None = None
) -> bytes | None:
    """Writes all variables that are kept from run to run, as `save_vars` does.

    For the program of a trainer, trainer 0 also writes the variables of servers: the state of optimizers, and tables.
    """
    program = plain_program(main_program)
    if dirname is not None and saves_with_servers(program):
        warn_of_filename(filename)
        save_with_servers(program, dirname)
        added = [*filter(is_persistable, added_variables(program))]
        return save_vars(executor, dirname, program, added) if added else None
    held = held_by_servers(program)
    if dirname is not None and held:
        warn_of_filename(filename)
        save_from_servers(executor, program, dirname, held)
        own = [var for var in program.list_vars() if is_persistable(var) and var.name not in held]
        return save_vars(executor, dirname, program, own) if own else None
    return save_vars(executor, dirname, program, None, is_persistable, filename)


def load_vars(
    executor: Any,
    dirname: str | None,
    main_program: Any = None,
    vars: Any = None,
    predicate: Chosen | None = None,
    filename: str | None = None,
) -> None:
    """Reads variables that this package or Fluid wrote with `save_vars`."""
    program = plain_program(main_program)
    names = list(dict.fromkeys(_selected_names(program, vars, predicate)))
    _read(program.freeze(), names, dirname, filename)


def _read(program: FrozenProgram, names: list[str], dirname: str | None, filename: str | None) -> None:
    """Reads variables. As in Fluid, only parameters must have the declared dims, because counters of `auc` don't have
    theirs.
    """
    scope, declared = global_scope().core, program.blocks[0].vars
    others = {name for name in names if name in declared and declared[name].parameter is None}
    if filename is None:
        tables = load_tables(scope, {name: (Path(dirname or ".", name), 0) for name in names})
        names = [name for name in names if name not in tables]
        load_variables(program, scope, dirname or ".", names=names, any_dims=others)
    else:
        source = Path(dirname or ".", filename)
        load_variables(program, scope, source, layout="combined", names=names, any_dims=others)


def load_params(executor: Any, dirname: str, main_program: Any = None, filename: str | None = None) -> None:
    """Reads the parameters."""
    load_vars(executor, dirname, main_program, None, is_parameter, filename)


def load_persistables(executor: Any, dirname: str, main_program: Any = None, filename: str | None = None) -> None:
    """Reads all variables that are kept from run to run; for the program of a server, its slices of them."""
    program = plain_program(main_program)
    if loads_slices(program):
        warn_of_filename(filename)
        load_slices(program, dirname, global_scope().core)
        if added := [*filter(is_persistable, added_variables(program))]:
            load_vars(executor, dirname, program, added)
        return
    load_vars(executor, dirname, program, None, is_persistable, filename)


def _names(given: Any) -> list[str]:
    items = given if several(given) else [given]
    return [item.name if isinstance(item, Variable) else str(item) for item in items]


def save_inference_model(
    dirname: str,
    feeded_var_names: Any,
    target_vars: Any,
    executor: Any,
    main_program: Any = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Writes the program that computes the targets from the fed variables, and its parameters; returns the names that a
    run fetches.

    As in Fluid these are new variables of the program itself, each a target times 1. Without `export_for_deployment`
    the whole program is written, to a file `<model_filename>.main_program`.
    """
    program = plain_program(main_program)
    return save_model(
        dirname,
        feeded_var_names,
        target_vars,
        program,
        (model_filename, params_filename),
        export_for_deployment=export_for_deployment,
        program_only=program_only,
    )


def save_model(
    dirname: str,
    feeded_var_names: Any,
    target_vars: Any,
    program: Program,
    filenames: tuple[str | None, str | None],
    *,
    export_for_deployment: bool = True,
    program_only: bool = False,
    together: bool = False,
) -> list[str]:
    """Writes a model as `save_inference_model` does; `filenames` are those of the program and of the parameters.

    With `together` the parameters of a cluster go to one file, too, as from Paddle 2.0 on. Raises ValueError for
    parameters that can't be in one file.
    """
    names = scaled_targets(program, target_vars)
    frozen, file = program.freeze(), filenames[0] or MODEL
    if export_for_deployment:
        frozen = inference_program(frozen, _names(feeded_var_names or []), names, scaled=True).program
    else:
        file += ".main_program"
    _write_model(dirname, frozen, program, (file, filenames[1]), program_only, together)
    return names


def write_model(dirname: str, feeds: Any, targets: Any, program: Program, holder: Program) -> None:
    """Writes the part of a program that computes the targets, with the values of its persistable variables on the
    machine of `holder`.
    """
    names = scaled_targets(program, targets)
    model = inference_program(program.freeze(), _names(feeds or []), names, scaled=True).program
    _write_model(dirname, model, holder, (MODEL, None))


def _write_model(
    dirname: str,
    model: FrozenProgram,
    holder: Program,
    filenames: tuple[str, str | None],
    program_only: bool = False,
    together: bool = False,
) -> None:
    from pstranspile.frontends.program_desc import program_to_bytes

    if any(op.type == "auc" for op in holder.drafts[0].all_ops()):
        warn("please ensure that you have set the auc states to zeros before saving inference model")
    persistable_names = [var.name for var in Program.of(model).list_vars() if is_persistable(var)]
    with_servers = saves_with_servers(holder) and not program_only
    scope = global_scope().core
    values = values_with_servers(holder, persistable_names, scope) if with_servers and together else None
    if values is not None:
        model = with_own_lookups(model)
    heights = whole_heights(holder, persistable_names, one_file=filenames[1] is not None)
    model = with_heights(model, heights)
    tables = {} if program_only else whole_tables(holder, heights, scope)
    os.makedirs(dirname, exist_ok=True)
    # Paddle 2.x leaves the lines of scripts out of models, Fluid 1.8.5 keeps them
    Path(dirname, filenames[0]).write_bytes(program_to_bytes(model if together else in_script(model)))
    if program_only:
        return
    if not persistable_names:
        message = "no variable in your model, please ensure there are any variables in your model to save"
        warn(message)
        return
    if values is not None and filenames[1] is not None:
        save_variables(
            model, {**values, **tables}, Path(dirname, filenames[1]), layout="combined", names=persistable_names
        )
        return
    if with_servers:
        warn_of_filename(filenames[1])
        persistable_names = [
            *tables,
            *sorted(save_with_servers(holder, dirname, [name for name in persistable_names if name not in tables])),
        ]
    if persistable_names:
        _write(model, persistable_names, dirname, filenames[1], {**scope, **tables} if tables else scope)


def load_inference_model(
    dirname: str | None,
    executor: Any,
    model_filename: str | bytes | None = None,
    params_filename: str | bytes | None = None,
    pserver_endpoints: Any = None,
) -> list[Any]:
    """Reads the files of `save_inference_model`: the program, the names of the fed variables, and the variables to
    fetch.

    Without a folder the arguments are the bytes of both files. With `pserver_endpoints`, rows of tables on servers are
    looked up there. Raises ValueError where a folder or bytes are missing, and for an op `feed` or `fetch` without a
    variable.
    """
    if dirname is None:
        if not isinstance(model_filename, bytes) or not isinstance(params_filename, bytes):
            raise ValueError("without a folder, model_filename and params_filename are the bytes of both files")
        with TemporaryDirectory() as folder:
            Path(folder, MODEL).write_bytes(model_filename)
            Path(folder, "params").write_bytes(params_filename)
            return load_inference_model(folder, executor, None, "params", pserver_endpoints)
    if isinstance(model_filename, bytes) or isinstance(params_filename, bytes):
        raise ValueError("bytes of a model are given without a folder")
    if not os.path.isdir(dirname):
        raise ValueError(f"there is no folder {dirname}")
    program = Program.parse_from_string(Path(dirname, model_filename or MODEL).read_bytes())
    kept = [var.name for var in program.list_vars() if is_persistable(var)]
    if kept:
        _read(program.freeze(), kept, dirname, params_filename)
    block = program.global_block()
    for op in block.ops if pserver_endpoints else ():
        if op.has_attr("epmap"):
            op.set_attr("epmap", list(pserver_endpoints))
    for op in block.ops:
        if op.type in ("feed", "fetch") and not (op.output("Out") if op.type == "feed" else op.input("X")):
            raise ValueError(f"{dirname}: {op.type} of the model names no variable")
    feeds = sorted((op.attr("col"), op.output("Out")[0]) for op in block.ops if op.type == "feed")
    fetches = sorted((op.attr("col"), op.input("X")[0]) for op in block.ops if op.type == "fetch")
    return [program, [name for _, name in feeds], [block.var(name) for _, name in fetches]]


def _get_valid_program(main_program: Any = None) -> Program:
    """The program behind a value, as `plain_program` returns it. Raises TypeError for other values, and for a program
    compiled from a graph.
    """
    return plain_program(main_program if getattr(main_program, "_program", main_program) is not None else "graph")


get_valid_program = _get_valid_program


def get_program_parameter(program: Program) -> list[Variable]:
    """The parameters of a program."""
    return [var for var in program.list_vars() if is_parameter(var)]


def get_inference_program(target_vars: Any, main_program: Any = None) -> Program:
    """The ops that compute the targets, set to behave as in tests, as a program of their own."""
    program: Any = plain_program(main_program)
    return program._prune(target_vars)._inference_optimize()


def get_program_persistable_vars(program: Program) -> list[Variable]:
    """The variables of a program that are kept from run to run."""
    return [var for var in program.list_vars() if is_persistable(var)]


def get_parameter_value(para: Variable, executor: Any) -> Any:
    """The value of a parameter in the scope in use."""
    return np.array(global_scope().core[para.name])


def get_parameter_value_by_name(name: str, executor: Any, program: Program | None = None) -> Any:
    """The value of the parameter of this name."""
    return get_parameter_value((program or default_main_program()).global_block().var(name), executor)


def save(program: Any, model_path: str) -> None:
    """Writes parameters to `.pdparams`, the optimizers' state to `.pdopt`, and the program to `.pdmodel`.

    The first two are pickled dicts of arrays. Raises ValueError for a path that ends in a slash.
    """
    save_state(program, model_path, OLD_PROTOCOL)


def save_state(program: Any, model_path: str, protocol: int) -> None:
    """Writes files as `save` does, with the given protocol of pickles."""
    if not os.path.basename(model_path):
        raise ValueError(f"{model_path!r} names a folder: save takes folder/name, without an ending")
    program = plain_program(program)
    Path(model_path).parent.mkdir(parents=True, exist_ok=True)
    for ending, predicate in ((".pdparams", is_parameter), (".pdopt", is_belong_to_optimizer)):
        names = dict.fromkeys(_selected_names(program, None, predicate))
        tables = _whole_tables(program, names)
        arrays = {name: tables[name] if name in tables else _array(name) for name in names}
        write_pickled(model_path + ending, arrays, protocol)
    Path(model_path + ".pdmodel").write_bytes(program.serialize_to_string())


def _whole_tables(program: Program, names: Iterable[str]) -> dict[str, Any]:
    """The values of the large tables and of their states among the variables, by name. Raises ValueError for a table
    with a row for every id that is too large for one value.
    """
    scope = global_scope().core
    held = {name: scope.get(name) for name in names}
    tables = {name for name, value in held.items() if isinstance(value, LargeTable)}
    tables |= {value.table for value in held.values() if isinstance(value, TableState)}
    return whole_values(scope, names, whole_heights(program, tables, one_file=True)) if tables else {}


def _array(name: str) -> Any:
    value = global_scope().core.get(name)
    if value is None:
        raise RuntimeError(f"{name} has no value yet: run the start-up program before you save")
    return np.asarray(getattr(value, "data", value) if not isinstance(value, np.ndarray) else value)


def load_program_state(model_path: str, var_list: Any = None) -> dict[str, Any]:
    """The arrays written by `save`, or by `save_vars` and similar functions, by name; `var_list` has the variables in
    one file or a folder.

    Raises ValueError for one file without a `var_list`, TypeError for a `var_list` with other things than variables,
    and RuntimeError where the files have other contents.
    """
    state = saved_state(without_ending(model_path))
    if state is not None:
        return state
    if var_list is not None and not all(isinstance(var, Variable) for var in var_list):
        raise TypeError("load_program_state takes variables in var_list, not their names")
    return older_state(model_path, None if var_list is None else _names(var_list))


def set_program_state(program: Program, state_dict: dict[str, Any]) -> None:
    """Sets the variables of a program that are kept from run to run.

    Raises ValueError where dims don't fit the declaration; if an op leaves a variable with another number of dims than
    declared, the dims of its value in the scope in use count.
    """
    scope = global_scope().core
    kept = [var for var in program.list_vars() if is_persistable(var) and var.name in state_dict]
    tables = [var.name for var in kept if isinstance(scope.get(var.name), LargeTable | TableState)]
    done = set_whole_values(scope, {name: np.asarray(state_dict[name]) for name in tables})
    for var in kept:
        if var.name not in done:
            value = np.asarray(state_dict[var.name])
            if var.shape == (1,) and value.shape == ():  # as versions from 2.5 on write single numbers
                value = value.reshape(1)
            held: Any = scope.get(var.name)
            begun = np.shape(getattr(held, "data", held))
            if value.shape != var.shape and (value.shape != begun or len(begun) == len(var.shape)):
                raise ValueError(f"{var.name} has the dims {list(var.shape)}, the file {list(value.shape)}")
            scope.put(var.name, np.array(value))


def load(program: Any, model_path: str, executor: Any = None, var_list: Any = None) -> None:
    """Reads the files written by `save`, or by `save_vars` and similar functions, into the scope in use.

    Raises ValueError where a variable of the program is missing. For files not written by `save`: ValueError without an
    executor and, if it is one file, without `var_list`; LookupError for a variable that the program does not have;
    RuntimeError where the files have other contents.
    """
    program = plain_program(program)
    held = [var.name for var in program.list_vars() if is_persistable(var)]
    wanted = held if var_list is None else _names(var_list)
    state = saved_state(without_ending(model_path))
    older = state is None
    if state is None:
        if executor is None:
            raise ValueError(f"{model_path}.pdparams is not there: load needs the executor to read files of save_vars")
        if strangers := sorted(set(wanted) - {var.name for var in program.list_vars()}):
            raise LookupError(f"the program has no {strangers[0]}, which var_list names")
        state = older_state(model_path, None if var_list is None and os.path.isfile(model_path) else wanted)
    missing = [name for name in wanted if name not in state]
    if missing:
        raise ValueError(f"{model_path} has no {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    try:
        set_program_state(program, {name: state[name] for name in wanted})
    except ValueError as problem:
        if older:
            raise RuntimeError(f"{model_path}: {problem}") from None
        raise


__getattr__ = names_of_fluid(__name__, globals())
