"""Names of Fluid that this package lacks: they can be imported, and raise an error where they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.resources import files
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NoReturn

from pstranspile.ir.diagnostics import did_you_mean, nearest

HERE = __name__.rpartition(".")[0]

_HOLDS = {
    "compiler": "parallel_executor",
    "contrib.decoder": "contrib.decoder.beam_search_decoder",
    "contrib.layers": "contrib.layers.metric_op contrib.layers.nn contrib.layers.rnn_impl",
    "contrib.mixed_precision": (
        "contrib.mixed_precision.decorator contrib.mixed_precision.fp16_lists contrib.mixed_precision.fp16_utils"
    ),
    "contrib.model_stat": "contrib.memory_usage_calc contrib.op_frequence",
    "contrib.quantize": "contrib.quantize.quantize_transpiler",
    "contrib.reader": "contrib.reader.distributed_reader",
    "contrib.utils": "contrib.utils.hdfs_utils",
    "dataloader": "dataloader.batch_sampler dataloader.dataset",
    "debugger": "distribute_lookup_table",
    "dygraph": "dygraph.nn",
    "incubate.fleet.base": "incubate.fleet.base.fleet_base incubate.fleet.base.mode incubate.fleet.base.role_maker",
    "incubate.fleet.parameter_server": (
        "incubate.fleet.parameter_server.distribute_transpiler incubate.fleet.parameter_server.version "
        "incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy"
    ),
    "incubate.fleet.utils": (
        "incubate.fleet.utils.fleet_barrier_util incubate.fleet.utils.fleet_util incubate.fleet.utils.hdfs"
    ),
    "launch": "paddle.distributed.fleet.launch paddle.distributed.launch",
    "launch_ps": "paddle.distributed.launch_ps",
    "layer_helper": "layer_helper_base",
    "layers.collective": "layers.device",
    "layers.distributions": "paddle.distribution",
    "layers.loss": "layers.metric_op",
    "layers.objects": "dygraph.layers",
    "layers.ops": "layers.layer_function_generator",
    "metrics": "average",
    "paddle.distributed.fleet.metrics": "paddle.distributed.fleet.metrics.metric",
    "paddle.distributed.fleet.one_fleet": (
        "paddle.distributed.fleet.base paddle.distributed.fleet.base.role_maker paddle.distributed.fleet.role_maker"
    ),
    "paddle.distributed.fleet.utils": "paddle.distributed.fleet.utils.ps_util",
    "paddle.framework": "paddle.device",
    "paddle.io": "paddle.incubate.hapi.distributed",
    "paddle.optimizer": "paddle.regularizer",
    "paddle.reader": "paddle.reader.decorator",
    "paddle.version": "paddle.check_import_scipy paddle.sysconfig",
    "proto": (
        "proto.data_feed_pb2 proto.framework_pb2 proto.profiler proto.profiler.profiler_pb2 proto.trainer_desc_pb2"
    ),
    "running.large_tables": "entry_attr",
    "scope": "default_scope_funcs",
    "trainer_desc": "data_feed_desc device_worker trainer_factory",
    "transpiler": "transpiler.memory_optimization_transpiler",
    "transpiler.details": (
        "transpiler.details.checkport transpiler.details.program_utils transpiler.details.ufind "
        "transpiler.details.vars_distributed"
    ),
    "transpiler.distribute_transpiler": "transpiler.collective transpiler.geo_sgd_transpiler transpiler.ps_dispatcher",
    "wrapped_decorator": "annotations",
}
"""Modules of this package that have the contents of several of Fluid's modules, each with those that have no file of
their own.
"""
_HOLDER = {part: holder for holder, parts in _HOLDS.items() for part in parts.split()}
"""For each module of Fluid without a file of its own, the module of this package that has its contents."""


class NotHere(NotImplementedError):
    """The error that this package does not have something of Fluid's interface."""


def unsupported_error(name: str, instead: str) -> NotHere:
    """The error for a name of Fluid that is refused; `instead` says what to do."""
    return NotHere(f"{name} is not part of pstranspile.fluid: {instead}")


_DYNAMIC = "dynamic graphs are not run"
_OLDER = "it is of the interface that Paddle had before Fluid; scripts written for Fluid 1.x are run"
_WHY = {
    **dict.fromkeys(("fluid.dygraph", "fluid.dygraph_utils", "fluid.VarBase"), _DYNAMIC),
    **{f"fluid.{verb}_{what}": _DYNAMIC for verb in ("enable", "disable") for what in ("dygraph", "imperative")},
    **dict.fromkeys(("fluid.load_dygraph", "fluid.save_dygraph"), _DYNAMIC),
    **dict.fromkeys(("v2", "trainer_config_helpers", "trainer"), _OLDER),
}
"""For names that are missing, with all names below them, the reason."""


def why_not(name: str) -> str:
    """The reason why this package lacks a name of Paddle, as a sentence; "" if there is nothing more to say."""
    short = name.removeprefix("paddle.")
    return next((why for above, why in _WHY.items() if short == above or short.startswith(f"{above}.")), "")


class Missing:
    """A placeholder for a name of Fluid; every use raises NotHere."""

    def __init__(self, name: str, known: Iterable[str]):
        self.__dict__["_name"] = name
        self.__dict__["_known"] = tuple(known)

    def _fail(self) -> NoReturn:
        name: str = self.__dict__["_name"]
        last = name.rpartition(".")[2]
        known: tuple[str, ...] = self.__dict__["_known"]
        why = why_not(name)
        near = None if why else nearest(last, known, 0.5)
        hint = f"; the nearest name that is there: {near}" if near else f": {why}" if why else ""
        raise NotHere(f"Fluid's {name} is not part of pstranspile.fluid{hint}")

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raises NotHere, whatever the arguments."""
        self._fail()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._fail()

    def __setattr__(self, name: str, value: object) -> None:
        self._fail()

    def __mro_entries__(self, _bases: object) -> tuple[type, ...]:
        """Lets a class derive from the placeholder, because modules may define classes for several uses; making an
        object raises NotHere.
        """

        def raise_not_here(*_: Any, **__: Any) -> NoReturn:
            self._fail()

        return (type(self.__dict__["_name"].rpartition(".")[2], (), {"__new__": raise_not_here}),)

    def __repr__(self) -> str:
        return f"<{self.__dict__['_name']}, which is not part of pstranspile.fluid>"


@cache
def _homes() -> dict[str, dict[str, str]]:
    """The names of Fluid 1.8.5 by module, each with its source: another module, `.MODULE` for a module
    itself, or "".
    """
    text = files(HERE).joinpath("names.txt").read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    pairs = {module.strip(): [word.partition("=") for word in words.split()] for module, _, words in lines}
    return {module: {name: home for name, _, home in words} for module, words in pairs.items()}


@cache
def fluid_names() -> dict[str, tuple[str, ...]]:
    """The names of Fluid 1.8.5 by module, whose names are without `paddle.fluid` (`layers`, `io`, ...)."""
    return {module: tuple(names) for module, names in _homes().items()}


def module_here(dotted: str) -> str | None:
    """The module of this package to import for a module under `pstranspile.fluid`: the module itself, or the one that
    has its contents; None if there is neither.
    """
    holder = _HOLDER.get(dotted.removeprefix(f"{HERE}."))
    if holder is not None:
        return f"{HERE}.{holder}"
    try:
        return dotted if find_spec(dotted) is not None else None
    except ModuleNotFoundError:
        return None


def has_parts(dotted: str) -> bool:
    """Whether a module under `pstranspile.fluid` is a package in Fluid, with modules that have no file of their own
    here.
    """
    return any(part.startswith(f"{dotted.removeprefix(HERE + '.')}.") for part in _HOLDER)


def parts_in(dotted: str) -> set[str]:
    """The names of the modules directly below a module under `pstranspile.fluid` that have no file of their own."""
    above = dotted.removeprefix(HERE).lstrip(".")
    return {part.rpartition(".")[2] for part in _HOLDER if part.rpartition(".")[0] == above}


def is_part(dotted: str) -> bool:
    """Whether a module under `pstranspile.fluid` has no file of its own, and no modules below it."""
    return dotted.removeprefix(f"{HERE}.") in _HOLDER and not has_parts(dotted)


class _PartFinder(MetaPathFinder, Loader):
    """Finds and loads modules of Fluid that have no file of their own, such as `pstranspile.fluid.average`."""

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of a module without a file of its own; None for all other modules."""
        if not fullname.startswith(f"{HERE}.") or fullname.removeprefix(f"{HERE}.") not in _HOLDER:
            return None
        return ModuleSpec(fullname, self, is_package=has_parts(fullname))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module that has the contents."""
        holder = import_module(f"{HERE}.{_HOLDER[spec.name.removeprefix(f'{HERE}.')]}")
        spec.loader_state = holder.__spec__
        return holder

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own specification. The module's code has already been run."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> Any:
        """The code of the module that has the contents, for `python -m`."""
        holder = find_spec(f"{HERE}.{_HOLDER[fullname.removeprefix(f'{HERE}.')]}")
        return None if holder is None or holder.loader is None else holder.loader.get_code(holder.name)  # type: ignore[attr-defined]


sys.meta_path.append(_PartFinder())


def _find_imported_name(name: str, home: str) -> Any:
    """A name that Fluid imports from another module, from the corresponding module of this package; None if that lacks
    it.
    """
    dotted = module_here(HERE if home.strip(".") == "fluid" else f"{HERE}.{home.strip('.')}")
    if dotted is None:
        return None
    module = import_module(dotted)
    return module if home.startswith(".") else vars(module).get(name)


def hold_parts(module: str, known: dict[str, Any]) -> list[str]:
    """Makes the modules of Fluid importable whose contents a module of this package has; those below it become names in
    it.

    `module` is the name of this package's module, `known` its globals. Returns the names of all these modules, without
    `pstranspile.fluid`, that of the module itself first.
    """
    own = module.removeprefix(HERE).lstrip(".")
    all_held = [own, *_HOLDS.get(own, "").split()]
    for part in all_held[1:]:
        above, _, last = part.rpartition(".")
        if above in all_held:  # others are found when they are asked for
            sys.modules.setdefault(f"{HERE}.{part}", sys.modules[module])
            known.setdefault(last, sys.modules[module])
    return all_held


def names_of_fluid(module: str, known: dict[str, Any]) -> Callable[[str], Any]:
    """A module's `__getattr__`, for the names of Fluid's module that this package's module lacks.

    A name that Fluid's module imports from another one is looked up there, and a layer that is in another module here
    is looked up in `layers`; for other names of Fluid's module it returns a Missing; all others raise AttributeError.
    `module` is the name of this package's module, `known` its globals. The modules of Fluid whose contents it has are
    importable from then on, and those below it are names in it.
    """
    all_held = hold_parts(module, known)
    own = all_held[0]

    def get(name: str) -> Any:
        short = next((part for part in all_held if name in _homes().get(part or "fluid", ())), own)
        home = _homes().get(short or "fluid", {}).get(name)
        if home == "" and short.startswith("layers."):
            home = "layers"  # which has the layers of all modules, some of which lie in other ones here
        if home is None and short == "layers.nn" and name in _homes()["layers"]:
            home = "layers"  # Fluid 1.5 had recurrent layers, losses and those of sequences in this module
        found = _find_imported_name(name, home) if home else None
        if found is not None:
            return found
        if home is not None:
            dotted = f"fluid.{short}.{name}" if short else f"fluid.{name}"
            return Missing(dotted, [key for key in known if not key.startswith("_")])
        asked_by_imports = name.startswith("__")  # `__path__` and its like, for which a search would be slow
        hint = "" if asked_by_imports else did_you_mean(name, [key for key in known if not key.startswith("_")])
        raise AttributeError(f"module {module} has no attribute {name!r}{hint}", name=name, obj=None)

    return get
