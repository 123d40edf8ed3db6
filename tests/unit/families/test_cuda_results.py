"""The names of ``cudaError_t`` against the real runtime libraries, which need no GPU to tell them."""

from __future__ import annotations

import ctypes
from importlib.metadata import PackageNotFoundError, files

import pytest

from otelgpu.families.cuda.results import RESULT_NAMES, result_name

# Package of the real library → its major version.
PACKAGES = {"nvidia-cuda-runtime-cu12": 12, "nvidia-cuda-runtime": 13}
CODES = range(-1, 10_100)


def names_of(package: str) -> dict[int, str]:
    """Every code that the library knows."""
    try:
        found = [f for f in files(package) or [] if f.name.startswith("libcudart.so")]
    except PackageNotFoundError:
        pytest.skip(f"the package {package} (the real libcudart) is not installed: pip install {package}")
    library = ctypes.CDLL(str(found[0].locate()))
    library.cudaGetErrorName.restype = ctypes.c_char_p
    named = {code: library.cudaGetErrorName(code).decode() for code in CODES}
    return {code: name for code, name in named.items() if name != named[-1]}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_code_of_the_library_has_the_librarys_name(package: str) -> None:
    theirs = names_of(package)
    assert {code: result_name(code) for code in theirs} == theirs


def test_no_name_is_made_up() -> None:
    known = {name for package in PACKAGES for name in names_of(package).items()}
    assert set(RESULT_NAMES.items()) - known == set()


def test_an_unknown_code_is_a_number() -> None:
    assert (result_name(77), result_name(-1)) == ("cudaError_t(77)", "cudaError_t(-1)")
