"""Where the tests of a real GPU run: on one, or with ``OTELGPU_GPU_TESTS=fake`` on the fakes.

Elsewhere each test is skipped with what is missing. The fakes cannot prove what the tests are for; they
prove that the tests themselves, their program and their reading work.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rig.fakes import BUILD, ROOT, build_fakes, cuda_include_flags, missing_compiler

STAND_IN = os.environ.get("OTELGPU_GPU_TESTS") == "fake"
RUNTIME = Path(sysconfig.get_path("purelib"), "nvidia", "cuda_runtime", "lib")
_TRY_DRIVER = """
import ctypes, sys
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"no NVIDIA driver library: {error}")
count = ctypes.c_int()
if code := driver.cuInit(0):
    sys.exit(f"cuInit answers {code}")
if (code := driver.cuDeviceGetCount(ctypes.byref(count))) or not count.value:
    sys.exit(f"cuDeviceGetCount answers {code}, {count.value} devices")
"""


@functools.cache
def missing_gpu() -> str | None:
    """What a real GPU lacks here, found by asking the driver; None when there is one."""
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return "no GPU: there is no /dev/nvidia<number>"
    tried = subprocess.run([sys.executable, "-c", _TRY_DRIVER], capture_output=True, text=True, timeout=60)
    return tried.stderr.strip() if tried.returncode else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None if STAND_IN else missing_gpu()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if reason is not None and "fake" not in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Gpu:
    """Where programs run: the environment that gives them CUDA, and the driver library that they get."""

    environment: Mapping[str, str]
    driver: Path
    real: bool

    def run(
        self, *command: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """To its end; fails the test with what the program said when it fails."""
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    if STAND_IN:
        folder = build_fakes()
        makefile = ROOT / "tests/fakes/cupti/Makefile.inc"
        subprocess.run(["make", "-s", "-f", makefile, f"BUILD={BUILD}", "cupti"], check=True, timeout=100)
        environment = {
            "LD_LIBRARY_PATH": str(folder),
            "FAKE_CUDART_DRIVER": "libcuda.so.1",
            "FAKE_CUDART_KERNEL_US": "200",
        }
        return Gpu(environment, folder / "libcuda.so.1", real=False)
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    drivers = [line.split("=>")[1].strip() for line in listed.splitlines() if "libcuda.so.1 " in line]
    if not drivers:
        pytest.skip("the linker's cache has no libcuda.so.1, though the driver can be opened")
    return Gpu({"LD_LIBRARY_PATH": str(RUNTIME)}, Path(drivers[0]).resolve(), real=True)


@pytest.fixture(scope="session")
def program(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/gpu/program.c, linked to libcudart.so.12."""
    if missing := missing_compiler():
        pytest.skip(missing)
    built = tmp_path_factory.mktemp("gpu") / "program"
    runtime = Path(gpu.environment["LD_LIBRARY_PATH"])
    if not (runtime / "libcudart.so.12").exists():
        pytest.skip(f"no libcudart.so.12 in {runtime}: nvidia-cuda-runtime-cu12 is not installed")
    source = ROOT / "tests/gpu/program.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", *cuda_include_flags()]
    command = ["gcc", *flags, "-o", built, source, f"-L{runtime}", "-l:libcudart.so.12"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    return built


@pytest.fixture(scope="session")
def nvcc() -> str:
    """The CUDA compiler."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("no nvcc: neither in PATH nor in /usr/local/cuda/bin")
    return found


@pytest.fixture(scope="session")
def figure() -> Callable[[str, Any], None]:
    """Prints a figure and adds it to gpu-results.json in $OUT, or in build/, of which the page of that name is made."""
    path = Path(os.environ.get("OUT", ROOT / "build")) / "gpu-results.json"

    def add(name: str, value: Any) -> None:
        known = json.loads(path.read_text()) if path.exists() else {}
        known[name if not STAND_IN else f"fake: {name}"] = value
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known, indent=2) + "\n")
        print(f"{name}: {value}")

    return add
