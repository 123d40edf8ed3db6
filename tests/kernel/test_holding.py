"""What is remembered of files, so that no process is stopped twice at the same one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from otelgpu.kernel.libbpf import Map
from otelgpu.kernel.loader import load_family, read_image

pytestmark = pytest.mark.usefixtures("kernel")


@pytest.fixture
def known_files() -> Iterator[Map]:
    loaded = load_family(read_image("process"), constants={}, ring_bytes=1 << 20)
    yield loaded.map("known_files")
    loaded.close()


def test_of_endless_files_the_latest_are_remembered(known_files: Map) -> None:
    """A node that lives for a year sees more of them than there is room for."""
    keys = [struct.pack("<QIxxxx", inode, 1) for inode in range(known_files.max_entries * 3 // 2)]
    for key in keys:
        known_files.put(key, b"\1")
    remembered = [key for key in keys if known_files.get(key)]
    assert remembered[-1] == keys[-1]
    assert known_files.max_entries // 4 < len(remembered) <= known_files.max_entries
