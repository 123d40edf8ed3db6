"""numpy goes without its masked arrays as long as nobody has one."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from otelgpu.kernel.quiet_imports import import_quietly
import_quietly()
import numpy as np
print(np.unique(np.array([3, 1, 3])), np.isin(np.array([1 << 63, 5], np.uint64), np.arange(9, dtype=np.uint64)))
print(np.union1d([1], [2]), "numpy.ma" in sys.modules)
masked = np.ma.array([1, 1, 2], mask=[0, 1, 0])
print(np.unique(masked), np.ma.is_masked(masked), np.ma is sys.modules["numpy.ma"])
"""


def test_masked_arrays_are_imported_when_there_is_one() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[1 3] [False  True]", "[1 2] False", "[1 2 --] True True"]
