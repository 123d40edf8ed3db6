"""ld.so's rules, on made-up folders and against the system's own linker."""

from __future__ import annotations

import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.processes.dynamic_linker import LoadedObject, SearchPath, parse_cache
from otelgpu.processes.libraries import library_name_of, resolve_program

AMD64, AARCH64 = 0x0303, 0x0A03
HERE = AARCH64 if platform.machine() == "aarch64" else AMD64


def cache(*entries: tuple[str, str, int, int], old_format: bool = False) -> bytes:
    """An ld.so.cache of (name, path, flags, hardware capabilities)."""
    strings, table = b"", b""
    start = 48 + 24 * len(entries)
    for name, path, flags, capabilities in entries:
        places = []
        for text in (name, path):
            places.append(start + len(strings))
            strings += text.encode() + b"\0"
        table += struct.pack("<iIIIQ", flags, *places, 0, capabilities)
    header = struct.pack("<20sII", b"glibc-ld.so.cache1.1", len(entries), len(strings)).ljust(48, b"\0")
    before = b"ld.so-1.7.0\0" + struct.pack("<I", 3) + bytes(36) if old_format else b""
    return before.ljust(-(-len(before) // 8) * 8, b"\0") + header + table + strings


def program(path: Path, **changes: object) -> LoadedObject:
    values: dict[str, object] = {"path": path, "needed": (), "rpath": (), "runpath": (), "parent": None}
    return LoadedObject(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("old_format", [False, True])
def test_the_cache_is_read_for_one_machine(old_format: bool) -> None:
    data = cache(
        ("libcuda.so.1", "/usr/lib/i386/libcuda.so.1", 0x0003, 0),
        ("libcuda.so.1", "/usr/lib/x/libcuda.so.1", AMD64, 0),
        ("libcuda.so.1", "/second/libcuda.so.1", AMD64, 0),
        ("libarm.so", "/arm/libarm.so", AARCH64, 0),
        ("libfast.so", "/v3/libfast.so", AMD64, 1 << 62 | 2),
        ("libfast.so", "/plain/libfast.so", AMD64, 0),
        old_format=old_format,
    )
    assert parse_cache(data, "x86-64") == {
        "libcuda.so.1": "/usr/lib/x/libcuda.so.1",
        "libfast.so": "/plain/libfast.so",
    }
    assert parse_cache(data, "aarch64") == {"libarm.so": "/arm/libarm.so"}


def test_the_systems_cache_reads_as_ldconfig_reads_it() -> None:
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin")
    path = Path("/etc/ld.so.cache")
    if ldconfig is None or not path.exists():
        pytest.skip("this system has no ldconfig or no /etc/ld.so.cache")
    listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout
    names = set(re.findall(r"^\t(\S+) \(libc6,x86-64[^)]*\) =>", listing, re.MULTILINE))
    if not names:
        pytest.skip("ldconfig -p lists nothing for x86-64")
    assert parse_cache(path.read_bytes(), "x86-64").keys() == names


@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_damaged_cache_is_survived(noise: bytes, place: int) -> None:
    data = bytearray(cache(("liba.so", "/liba.so", AMD64, 0), ("libb.so", "/libb.so", AMD64, 0)))
    data[place : place + len(noise)] = noise
    parse_cache(bytes(data), "x86-64")
    parse_cache(noise, "x86-64")


def test_rpath_comes_before_the_environment_and_runpath_behind(tmp_path: Path) -> None:
    search = SearchPath("x86-64", {"LD_LIBRARY_PATH": "/env"}, tmp_path, root=tmp_path)
    old = program(Path("/app/bin/x"), rpath=("/r",))
    assert list(search.candidates("liba.so", old))[:2] == [Path("/r/liba.so"), Path("/env/liba.so")]
    new = program(Path("/app/bin/x"), rpath=("/r",), runpath=("/n",))
    assert list(search.candidates("liba.so", new))[:2] == [Path("/env/liba.so"), Path("/n/liba.so")]


def test_rpaths_are_inherited_and_runpaths_are_not(tmp_path: Path) -> None:
    search = SearchPath("x86-64", {}, tmp_path, root=tmp_path)
    top = program(Path("/app/x"), rpath=("$ORIGIN/lib",))
    child = program(Path("/app/lib/liba.so"), rpath=("${ORIGIN}/deep",), parent=top)
    folders = list(search.own_folders(child))
    assert folders == [Path("/app/lib/deep"), Path("/app/lib")]
    modern = program(Path("/app/x"), runpath=("/n",), rpath=("/r",))
    assert list(search.own_folders(program(Path("/l/libb.so"), parent=modern))) == []


def test_tokens_are_filled_in(tmp_path: Path) -> None:
    search = SearchPath("x86-64", {}, tmp_path)
    folders = list(search.expand(["/a/$LIB", "$ORIGIN/$PLATFORM", "relative"], Path("/o")))
    assert folders == [
        Path("/a/lib/x86_64-linux-gnu"),
        Path("/a/lib64"),
        Path("/o/x86_64"),
        tmp_path / "relative",
    ]


def test_a_name_with_a_slash_is_a_path(tmp_path: Path) -> None:
    search = SearchPath("x86-64", {}, tmp_path)
    assert list(search.candidates("./liba.so", program(Path("/x")))) == [tmp_path / "liba.so"]


def test_the_cache_comes_before_the_default_folders(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(cache(("liba.so", "/opt/liba.so", AMD64, 0)))
    found = list(SearchPath("x86-64", {}, tmp_path, root=tmp_path).candidates("liba.so", program(Path("/x"))))
    assert found[0] == tmp_path / "opt/liba.so"
    assert tmp_path / "usr/lib/x86_64-linux-gnu/liba.so" in found[1:]


def test_musl_has_its_own_folders_and_no_cache(tmp_path: Path) -> None:
    search = SearchPath("aarch64", {}, tmp_path, interpreter="/lib/ld-musl-aarch64.so.1")
    assert search.cache == {} and Path("/usr/local/lib") in search.default_folders


def test_preloaded_libraries(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.preload").write_text("/opt/libp.so\n")
    search = SearchPath("x86-64", {"LD_PRELOAD": "liba.so:/b/libb.so libc.so"}, tmp_path, root=tmp_path)
    assert list(search.preloaded) == ["liba.so", "/b/libb.so", "libc.so", "/opt/libp.so"]


def test_the_running_linker_agrees(tmp_path: Path) -> None:
    """The libraries that ``ldd`` lists for this interpreter are the ones that the rules find."""
    ldd = shutil.which("ldd")
    if ldd is None:
        pytest.skip("ldd is not installed")
    listing = subprocess.run([ldd, sys.executable], capture_output=True, text=True).stdout
    truth = {Path(path).resolve() for path in re.findall(r"=> (/\S+)", listing)}
    library_names = {library_name for path in truth if (library_name := library_name_of(path))}
    if not truth:
        pytest.skip("the interpreter is static")
    found = resolve_program([sys.executable], {}, tmp_path, library_names)
    assert truth <= set(found.files)
