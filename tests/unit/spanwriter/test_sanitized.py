"""The library under AddressSanitizer and UBSan, by the tests of what it writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build
from tests.rig.fakes import ROOT

RUN = """
import sys
from pathlib import Path
import pytest
from otelgpu.spanwriter import library
library._LIBRARY = Path(sys.argv[1])
assert library.library() is not None
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
CHECKS = "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"


def runtime() -> str:
    """AddressSanitizer's library, which must be there before the interpreter."""
    return subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()


def checked(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    # By malloc() for all: what has the interpreter's own allocator beside it is not seen to be read beyond its end.
    environ = {
        **os.environ,
        "LD_PRELOAD": runtime(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
    return subprocess.run(
        [sys.executable, *arguments], env=environ, cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("sanitized") / "libspanwriter.so"
    sources = sorted((ROOT / hatch_build.SPANWRITER_SOURCES).glob("*.c"))
    flags = hatch_build.SPANWRITER_FLAGS
    subprocess.run(["gcc", *flags, *CHECKS, *sources, "-o", built], cwd=ROOT, check=True)
    return built


@pytest.mark.slow
def test_nothing_is_read_or_written_that_is_not_its_own(library: Path) -> None:
    """By a fifth of the examples: all of them are tried without, and each takes several times as long with."""
    tests = [str(path) for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    done = checked(["-c", RUN, str(library), "--hypothesis-profile=quick", *tests])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize(
    "spoilt", ["ctypes.memset((ctypes.c_char * 8)(), 0, 1 << 12)", "ctypes.string_at(bytes(40), 100)"]
)
def test_what_is_written_and_read_outside_is_seen(spoilt: str, library: Path) -> None:
    """Otherwise the test before this one shows nothing."""
    program = f"import ctypes, sys; ctypes.CDLL(sys.argv[1]); {spoilt}"
    assert checked(["-c", program, str(library)]).returncode != 0
