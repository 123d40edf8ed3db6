"""File offset → name."""

from __future__ import annotations

from pathlib import Path

from otelgpu.elf.image import ElfImage
from otelgpu.symbols.functions import FunctionTable, unknown_name, unknown_place
from tests.unit.elf.elf_builders import compile_c, synthetic_elf


def test_a_known_function_has_its_readable_name(tmp_path: Path) -> None:
    source = "namespace ns { int work(int x) { return x; } }\nint main() { return ns::work(0); }\n"
    elf = ElfImage(compile_c(tmp_path, "program", source, "-O0", with_compiler="g++").read_bytes())
    offset = elf.function_offsets(["_ZN2ns4workEi"])["_ZN2ns4workEi"]
    assert FunctionTable(elf, "program").name_at(offset + 2) == ("ns::work(int)", True)


def test_an_unknown_place_has_its_module_and_offset() -> None:
    table = FunctionTable(ElfImage(synthetic_elf(3, size=4)), "libfoo.so")
    assert table.name_at(12) == ("libfoo.so+0xc", False)


def test_a_host_stub_is_named_like_its_kernel() -> None:
    names = ("__device_stub__Z4axpyfPfS_",)
    table = FunctionTable(ElfImage(synthetic_elf(1, size=4, names=names)), "app")
    assert table.name_at(0) == ("axpy(float, float*, float*)", True)


def test_the_form_of_unknown_names() -> None:
    assert unknown_name("libfoo.so", 6699) == "libfoo.so+0x1a2b"
    assert unknown_place("libfoo.so+0x1a2b") == ("libfoo.so", 6699)
    assert unknown_place(unknown_name("a+0x1", 2)) == ("a+0x1", 2)
    assert unknown_place("[unknown]+0x7f00") == unknown_place("[anonymous]+0x10") == ("", 0)
