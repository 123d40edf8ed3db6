"""What the running kernel's type information names, however it can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from otelgpu.kernel import kernel_btf
from otelgpu.kernel.kernel_btf import has_typed_tracepoint, lacking_names


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "vmlinux"
    found.write_bytes(b"\x9f\xeb\x01\0task_struct\0btf_trace_tcp_probe\0" + bytes(5_000))
    monkeypatch.setattr(kernel_btf, "VMLINUX_BTF", found)
    return found


def test_names_are_found_whole(file: Path) -> None:
    assert lacking_names(["task_struct", "task", "btf_trace_tcp_probe", "sock"]) == ["task", "sock"]
    assert has_typed_tracepoint("tcp_probe")
    assert not has_typed_tracepoint("tcp")


def test_a_kernel_that_does_not_let_it_be_mapped_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(kernel_btf.mmap, "mmap", refuse)
    assert lacking_names(["task_struct", "sock"]) == ["sock"]


@pytest.mark.parametrize("content", [None, b""], ids=["none", "empty"])
def test_a_kernel_without_names_nothing(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert lacking_names(["task_struct"]) == ["task_struct"]
