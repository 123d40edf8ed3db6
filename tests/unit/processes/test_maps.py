"""The mappings of a process, read from text and from the living."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.processes.maps import distinct_files, executable_mappings, find, parse_maps, read_maps

TEXT = rb"""55bc3ccc7000-55bc3ccc9000 r--p 00000000 fe:00 247026                     /usr/bin/cat
55bc3ccc9000-55bc3ccce000 r-xp 00002000 fe:00 247026                     /usr/bin/cat
55bc42692000-55bc426b3000 rw-p 00000000 00:00 0                          [heap]
7fd794b6b000-7fd794b8d000 rwxp 00000000 00:00 0
7fd794b8d000-7fd794be4000 r-xs 00010000 103:1f 316526                    /tmp/with space/lib\012x  (1).so
7fd794be5000-7fd794be6000 r-xp 00000000 00:2c 4026531840                 /venv/libcudart.so.12 (deleted)
7fd794be6000-7fd794be7000 r-xp 00000000 00:01 1024                       /memfd:kernel cache (deleted)
7ffff7fc1000-7ffff7fc3000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def test_a_line_is_read_in_full() -> None:
    mapping = parse_maps(TEXT)[1]
    assert (mapping.start, mapping.end, mapping.offset) == (0x55BC3CCC9000, 0x55BC3CCCE000, 0x2000)
    assert (mapping.device, mapping.inode, mapping.path) == ((0xFE, 0), 247026, "/usr/bin/cat")
    assert mapping.executable and mapping.is_file and not mapping.deleted
    assert mapping.file_offset(0x55BC3CCC9123) == 0x2123


def test_hostile_paths_are_read_as_they_are() -> None:
    by_start = {mapping.start: mapping for mapping in parse_maps(TEXT)}
    spaced = by_start[0x7FD794B8D000]
    assert spaced.path == "/tmp/with space/lib\nx  (1).so" and spaced.device == (0x103, 0x1F)
    deleted = by_start[0x7FD794BE5000]
    assert deleted.path == "/venv/libcudart.so.12" and deleted.deleted and deleted.is_file
    memfd = by_start[0x7FD794BE6000]
    assert memfd.path == "/memfd:kernel cache" and memfd.deleted


def test_memory_without_a_file_is_reported_apart() -> None:
    others = [mapping.path for mapping in parse_maps(TEXT) if not mapping.is_file]
    assert others == ["[heap]", "", "[vdso]", "[vsyscall]"]


def test_only_code_may_be_asked_for() -> None:
    code = parse_maps(TEXT, executable_only=True)
    assert all(mapping.executable for mapping in code) and len(code) == 7
    assert [mapping.inode for mapping in distinct_files(code)] == [247026, 316526, 4026531840, 1024]


def test_addresses_are_found_from_first_to_last_byte() -> None:
    mappings = parse_maps(TEXT)
    assert find(mappings, 0x55BC3CCC9000) is mappings[1]
    assert find(mappings, 0x55BC3CCCDFFF) is mappings[1]
    assert find(mappings, 0x55BC3CCCE000) is None
    assert find(mappings, 0) is None and find(mappings, 1 << 64) is None and find([], 5) is None


def test_a_name_that_is_no_text_still_opens(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/lib\xff.so"
    mapping = parse_maps(b"1000-2000 r-xp 00000000 08:01 77 " + raw)[0]
    assert os.fsencode(mapping.path) == raw


def test_the_code_of_this_process_is_found() -> None:
    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert address is not None
    mapping = find(executable_mappings(os.getpid()), address)
    assert mapping is not None and mapping.path.startswith("/")
    assert Path(mapping.path).stat().st_ino == mapping.inode


def test_a_process_that_is_gone() -> None:
    with pytest.raises(OSError):
        read_maps(1 << 30)
    assert executable_mappings(1 << 30) == []


@given(st.binary(max_size=300))
def test_damaged_lines_are_skipped(text: bytes) -> None:
    assert len(parse_maps(TEXT + b"\n" + text)) >= 9
