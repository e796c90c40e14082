"""What scripts expect of Python and numpy, in a process of the runner and in one that it starts."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec
from pathlib import Path

import pytest

from pstranspile.fluid.running.compatibility import _CHANGES, Distutils, LooseVersion, getargspec, strtobool

SCRIPT = """\
import math, subprocess, sys
import collections
import numpy as np

assert issubclass(dict, collections.Mapping) and np.float is float

one = np.array([[1.5]], dtype="float32")
print(float(one), int(one), "%.1f %d" % (one, one), math.floor(one.reshape(1)), float(one[0, 0]), int(np.array(7)))
for wrong in (np.zeros(2), np.zeros(0)):
    try:
        float(wrong)
    except TypeError as problem:
        print("refused")
try:
    int(np.array(["x"]))
except ValueError as problem:
    print(problem)
if "child" not in sys.argv:
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", "import paddle, numpy; print(float(numpy.array([2.5])))"], check=True)
"""


def test_arrays_of_one_element_are_numbers_for_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", str(script)], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "1.5 1 1.5 1 1 1.5 7",
        "refused",
        "refused",
        "invalid literal for int() with base 10: 'x'",
        "2.5",
    ]


NAMES = """\
import base64, distutils.util, fractions, inspect, json, threading, time
from distutils.spawn import find_executable
from distutils.version import LooseVersion
import numpy as np

assert time.clock() >= 0 and fractions.gcd(6, 4) == 2 and not threading.Thread().isAlive()
assert inspect.getargspec(lambda a, b=1, *c: None)[:2] == (["a", "b"], "c")
assert distutils.util.strtobool("Yes") == 1 and find_executable("sh") and LooseVersion("1.10.0") > LooseVersion("1.9.2")
assert json.loads("[1]", encoding="utf8") == [1] and base64.decodestring(base64.encodestring(b"a")) == b"a"
read = np.fromstring(b"\\x01\\x02", dtype=np.uint8)
read[0] += np.fromstring("1 2", sep=" ")[1]
assert read.tostring() == b"\\x03\\x02" and read.ptp() == 1 and np.fromstring("ab", "uint8")[1] == 98
read.itemset(1, 5)
assert read.tolist() == [3, 5] and np.array([1, 2.5], copy=False)[1] == 2.5 and np.array(read, copy=False) is read
assert np.in1d([[1, 2]], [2]).tolist() == [False, True] and np.asscalar(np.ones(1)) == 1 and np.trapz([1, 1]) == 1
assert np.reshape([1, 2], newshape=[2, 1]).shape == np.reshape([1, 2], (2, 1)).shape == (2, 1)
assert np.asfarray([1]).dtype == float and np.isnan(np.NAN)
import random
assert sorted(random.sample({1, 2}, 2)) == [1, 2]
items = [1, 2, 3]
random.shuffle(items, lambda: 0.0)
assert items == [2, 3, 1]
import subprocess, sys
if "child" not in sys.argv:
    subprocess.run([sys.executable, __file__, "child"], check=True, env={**__import__("os").environ})
print("done")
"""


def test_scripts_find_what_python_had(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(NAMES.replace("import base64", "import paddle, base64"))
    ran = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", str(script)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr  # Python before 3.12 has distutils and warns of it
    assert ran.stdout.splitlines() == ["done", "done"]


COMPARED = """\
{first}
import unittest
import numpy as np


class Case(unittest.TestCase):
    def test_almost(self):
        self.assertAlmostEqual(0.8187307530779818, np.float32(0.8187307530779818))
        self.assertAlmostEqual(np.float32(1.5), 1.6, delta=0.2, msg="near")
        with self.assertRaisesRegex(AssertionError, "0.5 != .*0.500001"):
            self.assertAlmostEqual(0.5, np.float32(0.500001))
        self.assertNotAlmostEqual(0.5, np.float32(0.500001))
        self.assertAlmostEqual("same", "same")


unittest.main()
"""


@pytest.mark.parametrize("first", ["import unittest, paddle", "import paddle", ""])
def test_tests_compare_in_double_precision(tmp_path: Path, first: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMPARED.format(first=first))
    ran = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", str(script)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_versions_are_compared_part_by_part():
    old, new = LooseVersion("1.9.post2"), LooseVersion("1.10")
    assert old < new < "2"
    assert (old == "1.9.post2", old == 1, str(old), len({old, LooseVersion("1.9.post2")})) == (
        True,
        False,
        "1.9.post2",
        1,
    )
    with pytest.raises(TypeError):
        _ = old < 3


def test_words_are_yes_or_no():
    assert [strtobool(word) for word in ("on", "T", "no", "0")] == [1, 1, 0, 0]
    with pytest.raises(ValueError, match="'maybe'"):
        strtobool("maybe")


def test_arguments_by_name_only_have_no_place_in_an_argspec():
    with pytest.raises(ValueError, match="by name only"):
        getargspec(print_at)


def print_at(*, place: int) -> None:
    print(place)


def test_distutils_is_found_where_nothing_else_has_it():
    finder = Distutils()
    spec = finder.find_spec("distutils.util")
    assert spec is not None
    assert module_from_spec(spec).__name__ == "distutils.util"
    module = module_from_spec(spec)
    finder.exec_module(module)
    assert module.strtobool("y") == 1
    assert finder.find_spec("distutils.ccompiler") is None


IMAGES = """\
import subprocess, sys
from PIL import Image, ImageDraw, ImageFont
import PIL.Image

drawn = ImageDraw.Draw(Image.new("L", (40, 40))).textsize("wide")
font = ImageFont.load_default()
assert drawn[0] > drawn[1] > 0 and font.getsize("a")[0] > 0
small = Image.new("L", (4, 4)).resize((2, 2), Image.ANTIALIAS)
print(small.size, PIL.Image.LINEAR == Image.BILINEAR, Image.CUBIC == Image.BICUBIC, Image.NEAREST)
if "child" not in sys.argv:
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


def test_pillow_has_the_names_of_its_filters(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    script = tmp_path / "script.py"
    script.write_text(IMAGES.replace("import subprocess, sys", "import subprocess, sys, paddle"))
    ran = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", str(script)], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["(2, 2) True True 0"] * 2


def test_settings_are_read_without_a_loader():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    signatures = {name: getattr(yaml, name).__defaults__ for name in ("load", "load_all")}
    try:
        _CHANGES["yaml"](yaml)
        assert yaml.load("rate: 0.5") == {"rate": 0.5}
        assert list(yaml.load_all("[1]")) == [[1]]
        assert yaml.load("on", Loader=yaml.BaseLoader) == "on"
    finally:
        for name, before in signatures.items():
            getattr(yaml, name).__defaults__ = before


ROWS = """\
import subprocess, sys, paddle
import numpy as np

kept = np.array([[1, 2], [3]])
print(kept.dtype, kept.shape, kept[0], np.asarray([np.ones(2), np.ones(3)]).shape, np.array([[1], [2]]).dtype)
for wrong in ({"dtype": "int64"}, {"dtype": float}):
    try:
        np.array([[1, 2], [3]], **wrong)
    except ValueError:
        print("refused")
if "child" not in sys.argv:
    sys.stdout.flush()
    subprocess.run([sys.executable, __file__, "child"], check=True)
"""


def test_rows_of_unequal_lengths_make_arrays_of_lists(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ROWS)
    ran = subprocess.run(
        [sys.executable, "-m", "pstranspile.fluid", str(script)], capture_output=True, text=True, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["object (2,) [1, 2] (2,) int64", "refused", "refused"] * 2
