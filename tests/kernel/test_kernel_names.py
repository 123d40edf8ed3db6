"""Stripped programs and the real libcudart: kernels have names, whether or not their registration was seen."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.kernel.observing import Watch
from tests.unit.elf.elf_builders import compile_c
from tests.unit.symbols.cuda_programs import DATA

KERNELS = ("_Z4axpyfPfS_", "_ZN5model5scaleILi3EfEEvPT0_", "plain")  # of the fat binary
READABLE = {"axpy(float, float*, float*)", "void model::scale<3, float>(float*)", "plain"}
LAUNCHES = 7  # of each

# Registers its kernels as the code that nvcc makes does, after the first line of input; launches after the next.
PROGRAM = r"""
    #include <stdio.h>
    #include <stddef.h>
    extern "C" {
    struct dim3 { unsigned x, y, z; };
    int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
    int cudaMalloc(void **, size_t);
    void **__cudaRegisterFatBinary(void *);
    void __cudaRegisterFatBinaryEnd(void **);
    void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *,
                                int *);
    extern const unsigned long long device_code[];
    }
    __asm__(".section .nv_fatbin, \"a\"\n.balign 8\ndevice_code:\n.incbin \"@FATBIN@\"\n.previous\n");
    struct wrapper { int magic, version; const unsigned long long *data; void *more; };
    __attribute__((section(".nvFatBinSegment"), used))
    static wrapper device_text = {0x466243b1, 1, device_code, 0};
    static void launch(const void *stub) {
        void *arguments[3] = {}; dim3 one = {1, 1, 1}; cudaLaunchKernel(stub, one, one, arguments, 0, 0);
    }
    static __attribute__((noinline)) void stub_0(int x) { launch((const void *)stub_0); (void)x; }
    static __attribute__((noinline)) void stub_1(int x) { launch((const void *)stub_1); (void)x; }
    static __attribute__((noinline)) void stub_2(int x) { launch((const void *)stub_2); (void)x; }
    static void register_all(void) {
        void **handle = __cudaRegisterFatBinary(&device_text);
        __cudaRegisterFunction(handle, (const char *)stub_0, (char *)"@0@", "@0@", -1, 0, 0, 0, 0, 0);
        __cudaRegisterFunction(handle, (const char *)stub_1, (char *)"@1@", "@1@", -1, 0, 0, 0, 0, 0);
        __cudaRegisterFunction(handle, (const char *)stub_2, (char *)"@2@", "@2@", -1, 0, 0, 0, 0, 0);
        __cudaRegisterFatBinaryEnd(handle);
    }
    extern "C" __attribute__((visibility("default"))) void allocating(void) {
        void *memory; cudaMalloc(&memory, 100); __asm__ volatile("" ::: "memory");
    }
    int main() {
        getchar(); register_all(); puts("registered"); fflush(stdout);
        getchar(); for (int i = 0; i < @LAUNCHES@; i++) { stub_0(i); stub_1(i); stub_2(i); }
        allocating(); return 0;
    }
"""


@pytest.fixture
def cudart() -> Path:
    path = Path(sysconfig.get_path("purelib"), "nvidia/cu13/lib/libcudart.so.13")
    if not path.exists():
        pytest.skip(f"{path} is not there: nvidia-cuda-runtime is not installed")
    return path


class Client:
    """The program, compiled, stripped and started."""

    def __init__(self, folder: Path, cudart: Path, kernels: tuple[str, ...]) -> None:
        text = PROGRAM.replace("@FATBIN@", str(DATA / "zstd.fatbin")).replace("@LAUNCHES@", str(LAUNCHES))
        for number, kernel in enumerate(kernels):
            text = text.replace(f"@{number}@", kernel)
        options = ("-rdynamic", "-fvisibility=hidden", str(cudart), f"-Wl,-rpath,{cudart.parent}", "-s")
        program = compile_c(folder, "client", text, *options, with_compiler="g++")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid

    def register(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"registered\n"

    def launch(self) -> None:
        self.process.communicate(b"\n", timeout=20)


def launched(watching: Watch) -> set[str]:
    functions = watching.column("cuda_launch", "function").tolist()
    assert len(functions) == 3 * LAUNCHES and len(set(functions)) == 3
    return {watching.names()[function].name for function in functions}


def test_kernels_of_a_program_that_runs_already_are_named(
    watching: Watch, cudart: Path, tmp_path: Path
) -> None:
    client = Client(tmp_path, cudart, KERNELS)
    client.register()
    watching.observe(client.pid)
    watching.during(client.launch)
    assert launched(watching) == READABLE


def test_kernels_whose_registration_was_seen_have_the_name_given_there(
    watching: Watch, cudart: Path, tmp_path: Path
) -> None:
    # Names that are not in the device code: nothing but the registration reports them.
    client = Client(tmp_path, cudart, ("_Z5firsti", "_Z6secondi", "_Z5thirdi"))
    watching.observe(client.pid)
    watching.during(client.register)
    watching.during(client.launch)
    assert launched(watching) == {"first(int)", "second(int)", "third(int)"}


def test_an_allocation_is_named_by_the_function_that_calls(
    watching: Watch, cudart: Path, tmp_path: Path
) -> None:
    client = Client(tmp_path, cudart, KERNELS)
    client.register()
    watching.observe(client.pid)
    watching.during(client.launch)
    [caller] = watching.column("cuda_allocation", "caller").tolist()
    assert watching.names()[caller].name.startswith("allocating+0x")
    assert watching.names()[caller].known
