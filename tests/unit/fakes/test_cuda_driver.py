"""The fake libcuda: names and forms of the real one, injection, contexts, and the runtime on top of it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.rig import cuda_include_flags, fake_cuda_path, program_command, program_environment, run_program
from tests.rig.fakes import cuda_headers
from tests.unit.fakes.fake import SUCCESS

NOT_INITIALIZED, INVALID_CONTEXT, NOT_FOUND = 3, 201, 500
VERSION, PER_THREAD_DEFAULT_STREAM = 12090, 2


def header() -> str:
    folder = cuda_headers()
    assert folder is not None
    return (folder / "cuda.h").read_text()


def exports() -> set[str]:
    """Its functions. (The hook of the fake CUPTI is a variable.)"""
    with fake_cuda_path().open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        return {
            symbol.name
            for symbol in symbols.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        }


@pytest.fixture(scope="module")
def driver() -> ctypes.CDLL:
    return ctypes.CDLL(str(fake_cuda_path()))


def address_by_name(driver: ctypes.CDLL, name: str, version: int = VERSION, flags: int = 0) -> int:
    function, found = ctypes.c_void_p(), ctypes.c_int()
    status = driver.cuGetProcAddress_v2(
        name.encode(), ctypes.byref(function), version, ctypes.c_uint64(flags), ctypes.byref(found)
    )
    assert (status == SUCCESS) == (found.value == 0) == bool(function.value)
    return function.value or 0


def exported_address(driver: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(driver, name), ctypes.c_void_p).value or 0


class TestNames:
    def test_exports_only_what_cuda_h_declares(self) -> None:
        command = ["gcc", "-E", "-D__CUDA_API_VERSION_INTERNAL", *cuda_include_flags(), "-include", "cuda.h"]
        declarations = subprocess.run(
            [*command, "-x", "c", os.devnull], capture_output=True, text=True, check=True
        ).stdout
        declared = set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", declarations))
        assert len(exports()) > 200
        assert exports() <= declared

    def test_an_address_by_name_is_of_the_form_that_the_header_s_define_means(
        self, driver: ctypes.CDLL
    ) -> None:
        forms = dict(re.findall(r"#define (cu\w+)\s+(cu\w+_v\d)\b", header()))
        known = {name: form for name, form in forms.items() if form in exports() and name != form}
        # A plain cuCtxCreate is still _v2 in the header, and its newest form in cuGetProcAddress.
        del known["cuCtxCreate"]
        assert {"cuMemAlloc", "cuMemFree", "cuStreamDestroy", "cuDevicePrimaryCtxReset"} <= known.keys()
        assert {name: address_by_name(driver, name) for name in known} == {
            name: exported_address(driver, form) for name, form in known.items()
        }

    def test_an_old_program_gets_the_form_of_its_time(self, driver: ctypes.CDLL) -> None:
        v2, v3, v4 = (exported_address(driver, f"cuCtxCreate_v{number}") for number in (2, 3, 4))
        asked = [address_by_name(driver, "cuCtxCreate", version) for version in (3020, 11040, 12050)]
        assert asked == [v2, v3, v4]

    def test_per_thread_streams_give_the_ptsz_and_ptds_forms(self, driver: ctypes.CDLL) -> None:
        for name, form in (
            ("cuLaunchKernel", "cuLaunchKernel_ptsz"),
            ("cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds"),
            ("cuInit", "cuInit"),
        ):
            given = address_by_name(driver, name, flags=PER_THREAD_DEFAULT_STREAM)
            assert given == exported_address(driver, form)

    def test_a_name_that_is_none_is_not_found(self, driver: ctypes.CDLL) -> None:
        assert address_by_name(driver, "cuNothing") == 0


INJECTED = """
#include <stdio.h>
#include <stdlib.h>
int InitializeInjection(void)
{
	FILE *file = fopen(getenv("INJECTED_INTO"), "a");
	fprintf(file, "injected\\n");
	fclose(file);
	return 1;
}
"""


class TestInjection:
    @pytest.fixture
    def library(self, tmp_path: Path) -> Path:
        source, library = tmp_path / "injected.c", tmp_path / "injected.so"
        source.write_text(INJECTED)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
        return library

    @pytest.mark.parametrize("kind", ["driver", "shared"])
    def test_the_first_cu_init_prepares_the_named_library_once(
        self, kind: str, library: Path, tmp_path: Path
    ) -> None:
        note = tmp_path / "note"
        env = {"CUDA_INJECTION64_PATH": str(library), "INJECTED_INTO": str(note)}
        run_program("driver" if kind == "driver" else "shared", env=env)
        assert note.read_text() == "injected\n"

    def test_a_library_that_cannot_be_loaded_is_reported_and_harms_nothing(self) -> None:
        done = subprocess.run(
            program_command("driver"),
            env=program_environment({"CUDA_INJECTION64_PATH": "/nonexistent/injected.so"}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0
        assert "CUDA_INJECTION64_PATH" in done.stderr and "/nonexistent/injected.so" in done.stderr


CONTEXTS = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
pointer, context, device = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_int()
allocate = lambda: driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096))
said = [driver.cuDeviceGet(ctypes.byref(device), 0), driver.cuInit(0), allocate()]
said += [driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1), driver.cuCtxSetCurrent(context), allocate()]
said += [driver.cuCtxGetDevice(ctypes.byref(device)), device.value]
said += [driver.cuDevicePrimaryCtxReset_v2(1), driver.cuMemFree_v2(pointer)]
print(said)
"""


def test_a_call_needs_a_context_and_a_reset_takes_it_away() -> None:
    done = subprocess.run(
        ["python3", "-c", CONTEXTS, fake_cuda_path()],
        env={**os.environ, "FAKE_CUDART_DEVICES": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        done.stdout
        == str(
            [
                NOT_INITIALIZED,
                SUCCESS,
                INVALID_CONTEXT,
                SUCCESS,
                SUCCESS,
                SUCCESS,
                SUCCESS,
                1,
                SUCCESS,
                INVALID_CONTEXT,
            ]
        )
        + "\n"
    )


class TestNesting:
    def test_the_runtime_reaches_the_device_through_the_driver(self, tmp_path: Path) -> None:
        (said,) = run_program("shared", "--launches=23", "--mallocs=7", ledger=tmp_path / "ledger")
        assert said.calls["cudaLaunchKernel"] == said.driver_calls["cuLaunchKernel"] == 23
        assert said.calls["cudaMalloc"] == said.driver_calls["cuMemAlloc_v2"] == 8
        assert said.driver_calls["cuMemcpyHtoDAsync_v2"] == said.calls["cudaMemcpyAsync"]
        # Kernels are looked up by their registered names, at their first launch.
        assert said.driver_calls["cuLibraryGetKernel"] == len(said.kernels) == 2

    def test_a_call_that_the_driver_refuses_fails_in_the_runtime(self) -> None:
        with pytest.raises(RuntimeError, match="cudaLaunchKernel: error 719"):
            run_program("shared", env={"FAKE_CUDA_FAIL": "cuLaunchKernel:5:719"})

    def test_without_its_driver_the_runtime_says_insufficient_driver(self) -> None:
        with pytest.raises(RuntimeError, match="error 35"):
            run_program("shared", env={"FAKE_CUDART_DRIVER": "libnothing.so.1"})

    def test_alone_it_needs_no_driver(self, tmp_path: Path) -> None:
        (said,) = run_program("shared", env={"FAKE_CUDART_DRIVER": ""}, ledger=tmp_path / "ledger")
        assert said.calls["cudaLaunchKernel"] == 23 and not said.driver_calls
