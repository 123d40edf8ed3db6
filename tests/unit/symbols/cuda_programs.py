"""Programs that register kernels as nvcc's do, made by g++ around a fat binary from ``data/``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.unit.elf.elf_builders import compile_c

DATA = Path(__file__).parent / "data"
KERNELS = ("_Z4axpyfPfS_", "_ZN5model5scaleILi3EfEEvPT0_", "plain")
"""The kernels of data/kernels.cu, of which every fixture there was made."""

NAMES = frozenset(name.encode() for name in KERNELS)

_PROGRAM = r"""
    #include <stdio.h>
    __asm__(".section .nv_fatbin, \"a\"\n.balign 8\ndevice_code:\n.incbin \"@FATBIN@\"\n.previous\n");
    extern "C" const unsigned long long device_code[];
    struct wrapper { int magic, version; const unsigned long long *data; void *more; };
    __attribute__((section(".nvFatBinSegment"), used))
    static wrapper device_text = {0x466243b1, 1, device_code, 0};
    static int registered;
    #define VENDOR extern "C" __attribute__((noipa, visibility("hidden")))
    VENDOR void **__cudaRegisterFatBinary(void *image) {
        __asm__ volatile("" :: "r"(image) : "memory"); return (void **)image;
    }
    VENDOR void __cudaRegisterFunction(void **handle, const char *stub, char *name, const char *again, int limit,
        void *a, void *b, void *c, void *d, int *e) {
        __asm__ volatile("" :: "r"(handle), "r"(stub), "r"(name), "r"(again) : "memory"); registered += limit;
    }
    VENDOR void callback(void *owner, void (*made)(int), const char *name, const char *help, int flags) {
        __asm__ volatile("" :: "r"(owner), "r"(made), "r"(name), "r"(help) : "memory"); registered += flags;
    }
    @STUBS@
    static void unrelated(int x) { registered = x; }
    __attribute__((constructor)) static void register_all(void) {
        void **handle = __cudaRegisterFatBinary(&device_text);
        @REGISTRATIONS@
        @BEHIND@
    }
    // Looks like a registration, of another function under a kernel's name.
    VENDOR void misleading(void) { callback(0, unrelated, "plain", "plain", -1); }
    int main() {
        misleading();
        @SHOWN@
        fflush(stdout); getchar(); return registered == 0;
    }
"""


def compile_program(
    folder: Path,
    name: str,
    *options: str,
    fatbin: Path = DATA / "zstd.fatbin",
    kernels: Sequence[str] = KERNELS,
    stripped: bool = True,
    behind: str = "",
) -> Path:
    """A program that prints the addresses of its host stubs, one a line, and waits for its input to end.

    ``behind`` is code that follows the registrations.
    """
    stubs, calls, shown = [], [], []
    for number, kernel in enumerate(kernels):
        body = f"(int x) {{ registered += x * {number + 3}; }}"
        stubs.append(f"__attribute__((noinline)) static void stub_{number}{body}")
        calls.append(
            f'__cudaRegisterFunction(handle, (const char *)stub_{number}, (char *)"{kernel}", "{kernel}", -1,'
            " 0, 0, 0, 0, 0);"
        )
        shown.append(f'printf("%p\\n", (void *)stub_{number});')
    text = _PROGRAM.replace("@FATBIN@", str(fatbin)).replace("@STUBS@", "\n".join(stubs))
    text = text.replace("@REGISTRATIONS@", "\n".join(calls)).replace("@SHOWN@", "\n".join(shown))
    text = text.replace("@BEHIND@", behind)
    program = compile_c(folder, name, text, *options, with_compiler="g++")
    if stripped:
        subprocess.run(["strip", str(program)], check=True)
    return program
