"""Maps that JIT compilers leave in /tmp: of the right process, of the right user, whatever lies there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from otelgpu.families.profiles.discover import perf_maps
from otelgpu.families.profiles.discover.perf_maps import PerfMaps
from otelgpu.processes.mounts import UntrustedMount


class Proc:
    """A process 500, which is 7 in its own PID namespace, with a root directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "proc"
        self.tmp = folder / "root/tmp"
        self.tmp.mkdir(parents=True)
        (self.path / "500").mkdir(parents=True)
        (self.path / "500/root").symlink_to(folder / "root")
        (self.path / "500/status").write_text("Name:\tnode\nPid:\t500\nNSpid:\t500\t7\n")
        self.file = self.tmp / "perf-7.map"


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def maps(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> PerfMaps:
    monkeypatch.setattr(perf_maps, "_AGAIN_S", 0.0)
    return PerfMaps(proc=proc.path)


def test_the_file_is_found_below_the_process_root_under_its_own_number(proc: Proc, maps: PerfMaps) -> None:
    (proc.tmp / "perf-500.map").write_text("1000 10 wrong\n")
    proc.file.write_text("1000 10 right\n")
    assert maps.name(500, 0x1008) == "right"


def test_a_file_that_has_grown_is_read_again(proc: Proc, maps: PerfMaps) -> None:
    assert maps.name(500, 0x1000) is None
    proc.file.write_text("1000 10 first\n")
    assert maps.name(500, 0x1000) == "first"
    assert maps.name(500, 0x2000) is None
    with proc.file.open("a") as file:
        file.write("2000 10 second\n")
    assert maps.name(500, 0x2000) == "second"


def test_it_is_not_asked_for_at_every_address(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = PerfMaps(proc=proc.path)
    proc.file.write_text("1000 10 first\n")
    assert maps.name(500, 0x2000) is None
    proc.file.write_text("1000 10 first\n2000 10 second\n")
    assert maps.name(500, 0x2000) is None
    monkeypatch.setattr(perf_maps, "_AGAIN_S", 0.0)
    assert maps.name(500, 0x2000) == "second"


def test_a_link_a_pipe_and_a_directory_are_not_followed(proc: Proc, maps: PerfMaps, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1000 10 secret\n")
    proc.file.symlink_to(tmp_path / "secret")
    assert maps.name(500, 0x1000) is None
    proc.file.unlink()
    os.mkfifo(proc.file)
    assert maps.name(500, 0x1000) is None
    proc.file.unlink()
    proc.file.mkdir()
    assert maps.name(500, 0x1000) is None
    assert maps.counters["jit_map_refused"] == 3


def test_a_tmp_that_is_a_link_is_not_followed(proc: Proc, maps: PerfMaps, tmp_path: Path) -> None:
    proc.tmp.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/perf-7.map").write_text("1000 10 secret\n")
    proc.tmp.symlink_to(tmp_path / "elsewhere")
    assert maps.name(500, 0x1000) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_root_s_file_names_what_its_process_could_have_read(proc: Proc, maps: PerfMaps) -> None:
    proc.file.write_text("1000 10 root_s\n")
    proc.file.chmod(0o600)  # somebody has mounted it there
    os.chown(proc.path / "500", 12345, 12345)
    assert maps.name(500, 0x1000) is None
    assert maps.counters["jit_map_refused"] == 1
    proc.file.chmod(0o644)
    assert PerfMaps(proc=proc.path).name(500, 0x1000) == "root_s"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(proc: Proc, maps: PerfMaps) -> None:
    proc.file.write_text("1000 10 forged\n")
    os.chown(proc.file, 12345, 12345)
    assert maps.name(500, 0x1000) is None
    assert maps.counters["jit_map_refused"] == 1
    os.chown(proc.path / "500", 12345, 12345)
    os.utime(proc.file, ns=(1, 1))
    assert maps.name(500, 0x1000) == "forged"


def test_a_process_that_is_not_asked_for_its_mounts_is_counted_once(
    proc: Proc, maps: PerfMaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(root: str) -> int:
        raise UntrustedMount(errno.EACCES, root)

    proc.file.write_text("1000 10 forged\n")
    monkeypatch.setattr(perf_maps, "open_folder", refuse)
    assert [maps.name(500, address) for address in (0x1000, 0x1008)] == [None, None]
    assert maps.counters["jit_map_not_asked"] == 1
    assert maps.counters["jit_map_refused"] == 0


def test_what_is_damaged_is_counted(proc: Proc, maps: PerfMaps) -> None:
    proc.file.write_bytes(b"nonsense\n1000 10 f\n")
    assert maps.name(500, 0x1000) == "f"
    assert maps.counters["jit_lines_damaged"] == 1


def test_of_many_processes_those_that_were_asked_for_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perf_maps, "MAX_PROCESSES", 2)
    proc = Proc(tmp_path)
    for tgid in (500, 501, 502):
        if tgid != 500:
            (proc.path / str(tgid)).mkdir()
            (proc.path / str(tgid) / "root").symlink_to(tmp_path / "root")
            (proc.path / str(tgid) / "status").write_text(f"NSpid:\t{tgid}\n")
            (proc.tmp / f"perf-{tgid}.map").write_text(f"1000 10 of_{tgid}\n")
    proc.file.write_text("1000 10 of_500\n")
    maps = PerfMaps(proc=proc.path)
    assert [maps.name(tgid, 0x1000) for tgid in (500, 501, 502)] == ["of_500", "of_501", "of_502"]
    assert list(maps._kept) == [501, 502]
    maps.forget(501)
    assert list(maps._kept) == [502]


def test_a_process_that_is_gone_has_none(maps: PerfMaps) -> None:
    assert maps.name(501, 0x1000) is None
