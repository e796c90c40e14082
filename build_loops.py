"""Compiles `pstranspile/runtime/arithmetic/_loops.c`, as part of building the package or by hand.

    python build_loops.py

By hand, the module is put beside its source, where an installation with `pip install -e` puts it as well. Without a C
compiler the package is built all the same. It then calculates with numpy alone: the same bits, in more time.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
FOLDER = ROOT / "pstranspile" / "runtime" / "arithmetic"
SOURCE = FOLDER / "_loops.c"
GNU = ["-O3", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
MICROSOFT = ["/O2", "/fp:precise"]


def compiled(folder: Path) -> Path | None:
    """Compiles the module into a folder; None if that is not possible here, which is reported on stderr."""
    # imported here: the build's environment has it, and others may not
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    sources = SOURCE.with_suffix(".h").read_bytes() + SOURCE.read_bytes()
    checksum = f'"{zlib.crc32(sources):08x}"'
    extension = Extension(
        "_loops",
        [str(SOURCE)],
        define_macros=[("SOURCE", checksum)],
        extra_compile_args=MICROSOFT if sys.platform == "win32" else GNU,
    )
    command = build_ext(Distribution({"name": "loops", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder), str(folder / "objects")
    try:
        command.ensure_finalized()
        command.run()
    except Exception as problem:  # distutils and compilers raise their own kinds, none of which must end the build
        print(f"pstranspile: no compiled loops, numpy does their work: {problem}", file=sys.stderr)
        return None
    return folder / command.get_ext_filename("_loops")


def beside_source() -> Path | None:
    """Compiles the module and puts it beside its source."""
    with tempfile.TemporaryDirectory() as folder:
        module = compiled(Path(folder))
        if module is None:
            return None
        # an old module is replaced, not written over: running processes have it in their memory
        new = Path(shutil.copy(module, FOLDER / f".{module.name}.new"))
        return new.replace(FOLDER / module.name)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    pass
else:

    class CompiledLoops(BuildHookInterface[Any]):
        """Adds the module to a wheel, or puts it beside its source for an editable installation."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Called by hatchling before it builds."""
            if version == "editable":
                beside_source()
                return
            self._folder = tempfile.TemporaryDirectory()
            module = compiled(Path(self._folder.name))
            if module is not None:
                build_data["pure_python"], build_data["infer_tag"] = False, True
                build_data["force_include"][str(module)] = f"pstranspile/runtime/arithmetic/{module.name}"

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Called by hatchling after it has built."""
            if version != "editable":
                self._folder.cleanup()


if __name__ == "__main__":
    sys.exit(0 if beside_source() else 1)
