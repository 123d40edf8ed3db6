"""The names of results against the real runtime libraries and headers, which need no GPU to report them."""

from __future__ import annotations

import ctypes
import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

from otelgpu.families.gpu.cuda.results import DRIVER_RESULTS, RUNTIME_RESULTS, result_name

# Package of the real library and headers → its major version.
PACKAGES = {"nvidia-cuda-runtime-cu12": 12, "nvidia-cuda-runtime": 13}
CODES = range(-1, 10_100)


def file_of(package: str, name: str) -> Path:
    try:
        found = [f for f in files(package) or [] if f.name.startswith(name)]
    except PackageNotFoundError:
        pytest.skip(f"the package {package} (the real libcudart) is not installed: pip install {package}")
    return Path(str(found[0].locate()))


def runtime_names(package: str) -> dict[int, str]:
    """Every code that the library knows."""
    library = ctypes.CDLL(str(file_of(package, "libcudart.so")))
    library.cudaGetErrorName.restype = ctypes.c_char_p
    named = {code: library.cudaGetErrorName(code).decode() for code in CODES}
    return {code: name for code, name in named.items() if name != named[-1]}


def driver_names(package: str) -> dict[int, str]:
    """Every enumerator of CUresult in the header."""
    text = file_of(package, "cuda.h").read_text(encoding="utf-8", errors="replace")
    (body,) = re.findall(r"typedef enum cudaError_enum \{(.*?)\} CUresult;", text, re.DOTALL)
    found = {int(code): name for name, code in re.findall(r"^\s*(CUDA_\w+)\s*=\s*(\d+)", body, re.MULTILINE)}
    assert len(found) > 90  # the pattern still finds them
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_code_of_the_runtime_has_its_name(package: str) -> None:
    theirs = runtime_names(package)
    assert {code: result_name("cudaMalloc", code) for code in theirs} == theirs


@pytest.mark.parametrize("package", PACKAGES)
def test_every_code_of_the_driver_has_its_name(package: str) -> None:
    theirs = driver_names(package)
    assert {code: result_name("cuMemAlloc_v2", code) for code in theirs} == theirs


def test_no_name_is_made_up() -> None:
    runtime = {name for package in PACKAGES for name in runtime_names(package).items()}
    driver = {name for package in PACKAGES for name in driver_names(package).items()}
    assert (set(RUNTIME_RESULTS.items()) - runtime, set(DRIVER_RESULTS.items()) - driver) == (set(), set())


def test_an_unknown_code_is_a_number() -> None:
    reported = [result_name(api, code) for api in ("cudaMalloc", "cuMemAlloc") for code in (77, -1)]
    assert reported == ["cudaError_t(77)", "cudaError_t(-1)", "CUresult(77)", "CUresult(-1)"]


def test_one_code_has_two_names() -> None:
    reported = (result_name("cudaMalloc", 2), result_name("cuMemAlloc_v2", 2))
    assert reported == ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
