"""What libbpf finds in the part of the kernel's types that a session picks is what it finds in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.engine.registry import with_records
from otelgpu.kernel import core_btf
from otelgpu.kernel.core_btf import CoreBtf
from otelgpu.kernel.kernel_btf import VMLINUX_BTF
from otelgpu.kernel.loader import core_types_of, load_family, read_image
from tests.kernel.program_info import tag

FAMILIES = ("process", *with_records())


@pytest.fixture(scope="module")
def core_types() -> CoreBtf:
    return core_types_of(map(read_image, FAMILIES))


def tags(family: str, core_types: CoreBtf | None) -> dict[str, bytes]:
    """Of all programs, by name: what the kernel was given, whatever the descriptors of its maps."""
    loaded = load_family(
        read_image(family),
        constants={"stack_kinds": 0xFFFFFFFF},
        ring_bytes=4096,
        sessions=False,
        core_types=core_types,
    )
    try:
        return {program.name: tag(program) for program in loaded.programs}
    finally:
        loaded.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_are_the_same_as_with_all_of_the_kernels_types(family: str, core_types: CoreBtf) -> None:
    assert core_types.for_family(family) is not None, "it is served"
    assert tags(family, core_types) == tags(family, None)


def test_it_is_a_small_part_of_the_kernels_types(core_types: CoreBtf) -> None:
    written = Path(core_types.file.decode()).stat().st_size
    assert 0 < written < VMLINUX_BTF.stat().st_size / 40


def test_an_object_that_names_a_type_of_no_kernel_is_left_to_libbpf() -> None:
    """It may be a module's, among whose types libbpf looks."""
    image = read_image("process")
    renamed = image.btf_section.replace(b"\0mm_struct\0", b"\0mm_stricT\0")
    assert renamed != image.btf_section
    found = core_btf.core_btf(
        {"process": (renamed, image.relocations), "other": (image.btf_section, image.relocations)}
    )
    assert found.for_family("process") is None
    assert found.for_family("other") is not None
    found.close()
    assert found.for_family("other") is None


def test_without_the_library_libbpf_goes_through_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(core_btf, "_LIBRARY", tmp_path / "none.so")
    assert core_types_of([read_image("process")]).for_family("process") is None


@pytest.mark.parametrize("damage", ["cut", "kind", "reference", "empty"])
def test_types_that_are_not_as_expected_are_left_to_libbpf(
    damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    types = bytearray(VMLINUX_BTF.read_bytes())
    header = int.from_bytes(types[4:8], "little")
    if damage == "cut":
        del types[len(types) // 2 :]
    elif damage == "kind":
        types[header + 7] = 31
    elif damage == "reference":  # all that is referred to by a struct's members
        image = read_image("process")
        types = bytearray(image.btf_section)
        at = types.index(int.to_bytes(16, 2, "little") + b"\0\4")  # task_struct's 16 members
        types[at + 12 : at + 16] = b"\xff" * 4
    else:
        types.clear()
    monkeypatch.setattr(core_btf, "content", lambda: bytes(types))
    assert core_types_of([read_image("process")]).for_family("process") is None
    assert "libbpf goes through all" in caplog.text
