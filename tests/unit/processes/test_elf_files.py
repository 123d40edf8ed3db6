"""Files that others name are opened safely."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from otelgpu.elf.image import ElfError
from otelgpu.processes.elf_files import map_elf, open_elf, open_mapping, paths_of
from otelgpu.processes.maps import Mapping, executable_mappings
from tests.unit.elf.elf_builders import synthetic_elf


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "sample.so"
    path.write_bytes(synthetic_elf(3, size=4))
    return path


def own_mapping() -> Mapping:
    return next(mapping for mapping in executable_mappings(os.getpid()) if mapping.is_file)


def test_an_image_outlives_its_descriptor(sample: Path) -> None:
    with open_elf(sample) as file:
        assert file.identity == (sample.stat().st_dev, sample.stat().st_ino)
    assert file.image.function_offsets(["f"]) == {"f": 0}


def test_a_change_in_place_is_noticed(sample: Path) -> None:
    with open_elf(sample) as file:
        assert file.unchanged()
        os.truncate(sample, 100)
        assert not file.unchanged()


def test_what_is_no_regular_file_is_refused_without_blocking(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "empty").write_bytes(b"")
    for path in (fifo, tmp_path, Path("/dev/null"), tmp_path / "empty"):
        with pytest.raises(ElfError):
            open_elf(path)
    with pytest.raises(FileNotFoundError):
        open_elf(tmp_path / "absent")


def test_a_damaged_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\x7fELF" + bytes(500))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ElfError):
        open_elf(tmp_path / "bad")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_open_file_can_be_mapped(sample: Path, tmp_path: Path) -> None:
    with sample.open("rb") as file:
        assert map_elf(file.fileno()).function_offsets(["f"]) == {"f": 0}
    with (tmp_path / "empty").open("w+b") as file, pytest.raises(ElfError):
        map_elf(file.fileno())


def test_a_mapping_is_opened_through_the_process() -> None:
    mapping = own_mapping()
    with open_mapping(os.getpid(), mapping) as file:
        assert file.identity[1] == mapping.inode


def test_a_path_that_names_another_file_by_now_is_refused(sample: Path) -> None:
    mapping = replace(own_mapping(), start=0x1000, end=0x2000, path=str(sample), inode=1)
    with pytest.raises(OSError, match="another file"):
        open_mapping(os.getpid(), mapping)
    with open_mapping(os.getpid(), replace(mapping, inode=sample.stat().st_ino)) as file:
        assert file.image.function_offsets(["f"]) == {"f": 0}


def test_a_deleted_file_has_no_path_but_the_exact_one() -> None:
    mapping = replace(own_mapping(), start=0x1000, end=0x2000, path="/gone.so", deleted=True)
    assert paths_of(7, mapping) == [Path("/proc/7/map_files/1000-2000")]
    with pytest.raises(FileNotFoundError):
        open_mapping(os.getpid(), mapping)


def test_a_file_that_is_cut_off_while_it_is_mapped_ends_nobody(sample: Path) -> None:
    """In a program of its own: in this one other libraries, as chDB, may have taken the signal."""
    sample.write_bytes(sample.read_bytes() + bytes(1 << 20))
    program = """
import os, sys
from otelgpu.kernel.cut_files import pages_cut_off
from otelgpu.processes.elf_files import open_elf
with open_elf(sys.argv[1]) as file:
    before = pages_cut_off()
    os.truncate(sys.argv[1], 4096)
    assert bytes(file.image.buffer[1 << 20 : (1 << 20) + 8]) == bytes(8)
    assert pages_cut_off() == before + 1
    assert not file.unchanged()
"""
    subprocess.run([sys.executable, "-c", program, sample], check=True, timeout=60)


def test_what_a_signal_alone_says_of_memory_is_not_survived() -> None:
    program = """
import os, signal
from otelgpu.kernel.cut_files import survive_cut_files
survive_cut_files()
os.kill(os.getpid(), signal.SIGBUS)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == -signal.SIGBUS


def test_links_below_a_process_s_root_lead_nowhere_else(sample: Path, tmp_path: Path) -> None:
    root = tmp_path / "7" / "root"
    (root / "lib").mkdir(parents=True)
    (root / "inside.so").write_bytes(sample.read_bytes())
    (root / "lib" / "absolute.so").symlink_to("/inside.so")
    (root / "lib" / "outside.so").symlink_to(sample)
    (root / "lib" / "above.so").symlink_to("../../../../" + sample.name)
    with open_elf(f"{root}/lib/absolute.so") as file:
        assert file.identity[1] == (root / "inside.so").stat().st_ino
    for name in ("outside", "above"):
        with pytest.raises(FileNotFoundError):
            open_elf(f"{root}/lib/{name}.so")
