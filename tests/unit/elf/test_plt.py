"""Stubs of linkage tables have the names that objdump gives them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from otelgpu.elf.image import ElfImage
from otelgpu.elf.plt import STUB_BYTES, read_stubs, stub_name
from otelgpu.symbols.functions import FunctionTable
from tests.unit.elf.elf_builders import compile_c, compiler

PROGRAM = """
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    int main(int count, char **words)
    {
        char text[64];
        memset(text, count, sizeof(text));
        puts(getenv(words[0]));
        return strcmp(text, words[0]) + (int)strtol(words[0], NULL, 10);
    }
"""
FORMS = {
    "lazy": ("-Wl,-z,lazy",),
    "now": ("-Wl,-z,now",),
    "ibt": ("-fcf-protection=full", "-Wl,-z,ibtplt"),
    "ibt, now": ("-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,now"),
    "not position-independent": ("-no-pie", "-fno-pie"),
    "stripped": ("-s",),
}
LABEL = re.compile(r"^([0-9a-f]+) <(\w+)@plt>:$", re.MULTILINE)


def objdumps(path: Path) -> dict[int, str]:
    """Address → function, of all stubs."""
    command = [compiler("objdump"), "-d", "-j", ".plt", "-j", ".plt.sec", str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {int(address, 16): name for address, name in LABEL.findall(text)}


@pytest.mark.parametrize("form", FORMS)
def test_each_stub_has_the_name_that_objdump_gives_it(form: str, tmp_path: Path) -> None:
    path = compile_c(tmp_path, "program", PROGRAM, "-fno-builtin", *FORMS[form])
    image = ElfImage(path.read_bytes())
    stubs = read_stubs(image)
    named = {int(start): stub_name(image, int(stubs.symbol_at(int(start)) or 0)) for start in stubs.starts}
    expected = objdumps(path)
    assert {"memset", "puts", "getenv", "strcmp", "strtol"} <= set(expected.values())
    assert named == expected


def test_a_sample_in_a_stub_is_named_after_its_function(tmp_path: Path) -> None:
    path = compile_c(tmp_path, "program", PROGRAM, "-fno-builtin")
    image = ElfImage(path.read_bytes())
    table = FunctionTable(image, "program")
    start = next(address for address, name in objdumps(path).items() if name == "memset")
    for inside in (0, STUB_BYTES - 1):
        offset = image.offset_of(start + inside)
        assert offset is not None
        assert table.name_at(offset) == ("memset@plt", True)
        assert table.function_at(offset) == ("memset@plt", "memset@plt")


def test_the_tables_first_stub_is_nobodys(tmp_path: Path) -> None:
    """It calls the dynamic linker."""
    image = ElfImage(compile_c(tmp_path, "program", PROGRAM, "-fno-builtin", "-Wl,-z,lazy").read_bytes())
    table = image.section(".plt")
    assert table is not None
    stubs = read_stubs(image)
    assert stubs.symbol_at(table.address) is None
    assert stubs.symbol_at(int(stubs.starts[-1]) + STUB_BYTES) is None
    assert stubs.symbol_at(0) is None


def test_a_static_program_has_none(tmp_path: Path) -> None:
    path = compile_c(
        tmp_path, "program", "int main(void) { return 0; }", "-static", "-nostdlib", "-Wl,-e,main"
    )
    assert not len(read_stubs(ElfImage(path.read_bytes())).starts)
