"""Addresses of living, dead and odd processes → names."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from otelgpu.processes import address_resolver as symbols
from otelgpu.processes.address_resolver import AddressResolver
from otelgpu.processes.elf_files import open_elf
from otelgpu.processes.maps import executable_mappings
from otelgpu.processes.reader.accounts import Accounts, owner_of
from tests.unit.elf.elf_builders import compile_c

# Prints where its kernels' host stubs lie, then waits for its input to end.
PROGRAM = r"""
    #include <stdio.h>
    __attribute__((noinline)) void axpy(float a, float *x, float *y) { *y += a * *x; }
    static __attribute__((noinline)) void scale(float *x) { *x *= 2; }
    int main(int argc, char **argv) {
        float x = 1, y = 2; axpy(3, &x, &y); scale(&x);
        printf("%p %p\n", (void *)axpy, (void *)scale); fflush(stdout);
        getchar(); return 0;
    }
"""


class Running:
    """A started program and the addresses that it printed."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.pid = self.process.pid
        self.axpy, self.scale = (int(word, 16) for word in self.process.stdout.readline().split())

    def end(self) -> None:
        self.process.communicate(timeout=10)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compile_c(tmp_path, "app", PROGRAM, "-O0", with_compiler="g++")


@pytest.fixture
def running(program: Path) -> Iterator[Running]:
    started = Running(program)
    yield started
    started.end()


@pytest.fixture
def resolver() -> Iterator[AddressResolver]:
    made = AddressResolver()
    yield made
    made.close()


def counted(resolver: AddressResolver) -> dict[str, int]:
    return {reason: count for reason, count in resolver.counters.items() if count}


def test_who_has_taken_its_share_has_no_names_and_others_have(running: Running, program: Path) -> None:
    accounts = Accounts(share=0.0, advance_s=1.0)
    resolver = AddressResolver(accounts=accounts)
    accounts.of(owner_of(running.pid)).spend(1.0)
    name, is_known = resolver.resolve(running.pid, running.axpy)
    assert name.startswith("app+0x") and not is_known
    assert counted(resolver) == {"owner_over_share": 1}
    accounts.of(owner_of(running.pid)).spend(-1.0)  # it has filled again: nothing is kept of the refusal
    assert resolver.resolve(running.pid, running.axpy)[1]
    resolver.close()


def test_what_takes_long_is_charged_and_what_does_not_is_free(running: Running, tmp_path: Path) -> None:
    accounts = Accounts(share=0.0, advance_s=1.0)
    resolver = AddressResolver(accounts=accounts)
    owner = owner_of(running.pid)
    resolver.resolve(running.pid, running.axpy)  # its file is looked through
    for address in range(running.axpy, running.axpy + 16):
        resolver.resolve(running.pid, address)
    left_s = accounts.of(owner)._left_s
    assert left_s > 0.9
    slow = symbols.FunctionTable.name_at

    def name_at(table: symbols.FunctionTable, offset: int) -> tuple[str, bool]:
        end_s = time.thread_time() + 0.05
        while time.thread_time() < end_s:
            pass
        return slow(table, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symbols.FunctionTable, "name_at", name_at)
        resolver.resolve(running.pid, running.scale)
    assert 0.04 < left_s - accounts.of(owner)._left_s < 0.1
    resolver.close()


def test_who_has_many_programs_pushes_out_its_own(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    owners: dict[int, tuple[str, int]] = {}
    monkeypatch.setattr(symbols.Owners, "of", lambda _, tgid: owners[tgid])
    resolver = AddressResolver(max_processes=3)
    running = [Running(program) for _ in range(5)]
    for number, each in enumerate(running):
        owners[each.pid] = ("/victim" if number == 0 else "/tenant", 1000)
    for each in running:
        resolver.resolve(each.pid, each.axpy)
        each.end()
    assert list(resolver._processes) == [running[0].pid, running[3].pid, running[4].pid]
    resolver.close()


def test_functions_of_another_process_are_named(running: Running, resolver: AddressResolver) -> None:
    assert resolver.resolve(running.pid, running.axpy) == ("axpy(float, float*, float*)", True)
    assert resolver.resolve(running.pid, running.scale + 3) == ("scale(float*)", True)
    assert counted(resolver) == {}


def test_functions_of_this_process_and_its_libraries_are_named(resolver: AddressResolver) -> None:
    address = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value
    assert address is not None
    assert resolver.resolve(os.getpid(), address) == ("qsort", True)


def test_a_program_that_was_deleted_is_still_read(program: Path, resolver: AddressResolver) -> None:
    running = Running(program)
    try:
        if not os.access(f"/proc/{running.pid}/map_files", os.R_OK):
            pytest.skip("map_files wants CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")
        program.unlink()
        assert resolver.resolve(running.pid, running.axpy)[1]
    finally:
        running.end()


def test_a_process_that_ended_is_named_if_it_was_remembered(program: Path, resolver: AddressResolver) -> None:
    running = Running(program)
    resolver.remember(running.pid)
    running.end()
    program.unlink()
    assert resolver.resolve(running.pid, running.axpy) == ("axpy(float, float*, float*)", True)


def test_a_child_that_has_ended_already_is_named_by_what_its_parent_has_mapped(
    running: Running, resolver: AddressResolver
) -> None:
    resolver.remember(running.pid)
    resolver.inherit(running.pid, 1 << 30)
    assert resolver.resolve(1 << 30, running.axpy) == ("axpy(float, float*, float*)", True)
    assert counted(resolver) == {}


def test_a_process_that_has_ended_already_is_named_by_what_it_had_mapped_earlier(
    running: Running, resolver: AddressResolver
) -> None:
    resolver.remember(1 << 30, executable_mappings(running.pid))
    assert resolver.resolve(1 << 30, running.axpy)[1]


def test_a_process_that_is_gone_is_counted(resolver: AddressResolver) -> None:
    resolver.remember(1 << 30)
    assert counted(resolver) == {}
    assert resolver.resolve(1 << 30, 0x1234) == ("[unknown]+0x1234", False)
    assert counted(resolver) == {"process_gone": 1}


def test_a_process_that_may_not_be_read_is_counted(
    monkeypatch: pytest.MonkeyPatch, resolver: AddressResolver
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(symbols, "read_maps", denied)
    assert resolver.resolve(1, 0x10) == ("[unknown]+0x10", False)
    assert counted(resolver) == {"process_denied": 1}


def test_a_stripped_program_gives_module_and_offset(tmp_path: Path, resolver: AddressResolver) -> None:
    running = Running(compile_c(tmp_path, "app stripped", PROGRAM, "-s", with_compiler="g++"))
    try:
        name, known = resolver.resolve(running.pid, running.scale)
        assert name.startswith("app stripped+0x") and not known
        assert counted(resolver) == {"symbol_missing": 1}
    finally:
        running.end()


def test_code_made_at_run_time_has_no_name(resolver: AddressResolver) -> None:
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
    view = ctypes.c_char.from_buffer(page)
    name, known = resolver.resolve(os.getpid(), ctypes.addressof(view) + 5)
    assert not known and name.startswith("[anonymous]+0x")
    assert counted(resolver) == {"mapping_anonymous": 1}
    del view
    page.close()


def test_an_address_that_is_mapped_nowhere_is_looked_up_once(
    monkeypatch: pytest.MonkeyPatch, resolver: AddressResolver
) -> None:
    reads = []
    read = symbols.read_maps
    monkeypatch.setattr(symbols, "read_maps", lambda *a, **k: reads.append(a) or read(*a, **k))  # type: ignore[func-returns-value]
    for _ in range(5):
        assert resolver.resolve(os.getpid(), 0x10) == ("[unknown]+0x10", False)
    assert len(reads) == 1 and counted(resolver) == {"address_unmapped": 5}


def test_code_that_is_mapped_later_is_found(tmp_path: Path, resolver: AddressResolver) -> None:
    library = compile_c(tmp_path, "liblate.so", "int late_one(void) { return 1; }", "-shared", "-fPIC")
    assert resolver.resolve(os.getpid(), 0x10)[1] is False
    address = ctypes.cast(ctypes.CDLL(str(library)).late_one, ctypes.c_void_p).value
    assert address is not None
    assert resolver.resolve(os.getpid(), address) == ("late_one", True)


def test_a_file_that_changed_in_place_is_not_read(program: Path, resolver: AddressResolver) -> None:
    copy = program.with_name("libcopy.so")
    source = compile_c(program.parent, "libold.so", "int one(void) { return 1; }", "-shared", "-fPIC")
    copy.write_bytes(source.read_bytes())
    address = ctypes.cast(ctypes.CDLL(str(copy)).one, ctypes.c_void_p).value
    assert address is not None
    assert resolver.resolve(os.getpid(), address)[1]
    os.utime(copy, ns=(1, 1))
    assert resolver.resolve(os.getpid(), address)[1]  # remembered from before
    name, known = resolver.resolve(os.getpid(), address + 1)
    assert not known and name.startswith("libcopy.so+0x")
    assert counted(resolver) == {"file_changed": 1}


def test_a_mapped_file_that_is_no_image_is_counted(tmp_path: Path, resolver: AddressResolver) -> None:
    path = tmp_path / "data\x1b[31m.so"
    path.write_bytes(b"x" * 4096)
    with path.open("rb") as file:
        page = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    entry = next(m for m in symbols.read_maps(os.getpid()) if m.path == str(path) and m.executable)
    name, known = resolver.resolve(os.getpid(), entry.start + 7)
    assert (name, known) == ("data\N{REPLACEMENT CHARACTER}[31m.so+0x7", False)
    assert counted(resolver) == {"file_not_elf": 1}
    page.close()


def test_the_caches_stay_within_their_bounds(tmp_path: Path, running: Running) -> None:
    resolver = AddressResolver(max_files=2, max_processes=1, max_names_bytes=2000)
    addresses = []
    for number in range(4):
        source = f"int function_{number}(void) {{ return {number}; }}"
        library = ctypes.CDLL(str(compile_c(tmp_path, f"lib{number}.so", source, "-shared", "-fPIC")))
        addresses.append(ctypes.cast(getattr(library, f"function_{number}"), ctypes.c_void_p).value or 0)
    for _ in range(2):
        for number, address in enumerate(addresses):
            assert resolver.resolve(os.getpid(), address) == (f"function_{number}", True)
        assert resolver.resolve(running.pid, running.axpy)[1]
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    assert len(resolver._modules) == 2 and len(resolver._processes) == 1
    for offset in range(100):
        resolver.resolve(running.pid, running.axpy + offset)
    assert resolver._names_bytes <= 2000
    assert resolver._names_bytes == sum(symbols._cost(answer) for answer in resolver._names.values())
    resolver.close()
    assert len(list(Path("/proc/self/fd").iterdir())) < open_before
    assert resolver._names_bytes == 0


@pytest.mark.parametrize(
    "name_of",
    [
        lambda resolver, address: resolver.place(os.getpid(), address).name,
        lambda resolver, address: resolver.resolve(os.getpid(), address)[0],
    ],
)
def test_tables_of_functions_stay_within_their_bound_and_what_was_given_back_is_read_again(
    tmp_path: Path, name_of: Callable[[AddressResolver, int], str]
) -> None:
    addresses = []
    for number in range(3):
        source = "".join(f"int f{number}_{n}(void) {{ return {n}; }}\n" for n in range(100))
        library = ctypes.CDLL(str(compile_c(tmp_path, f"lib{number}.so", source, "-shared", "-fPIC")))
        addresses.append(ctypes.cast(getattr(library, f"f{number}_7"), ctypes.c_void_p).value or 0)
    resolver = AddressResolver(max_tables_bytes=8000)  # of two
    held = []
    for turn in range(3):  # another place in each, for names are kept
        for number, address in enumerate(addresses):
            assert name_of(resolver, address + turn) == f"f{number}_7"
            tables = [module.table.held_bytes for module in resolver._modules.values()]
            assert resolver._tables_bytes == sum(tables)
            assert tables.count(0) == max(len(tables) - 2, 0)
            held.append(resolver._tables_bytes)
    assert 100 * 28 <= held[0] < max(held) <= 8000
    assert len(resolver._modules) == 3 and set(resolver.counters.values()) == {0}
    small = AddressResolver(max_tables_bytes=1)
    assert name_of(small, addresses[0]) == "f0_7"
    assert small._tables_bytes == held[0]
    for each in (resolver, small):
        each.close()
        assert each._tables_bytes == 0


def test_a_return_address_is_named_by_the_call_before_it(running: Running, resolver: AddressResolver) -> None:
    assert resolver.resolve_return(running.pid, running.scale + 4) == ("scale(float*)+0x4", True)
    assert resolver.resolve(running.pid, running.scale + 4) == ("scale(float*)", True)
    # The byte before belongs to the function before, or to nobody, never to the one that starts here.
    assert not resolver.resolve_return(running.pid, running.axpy)[0].startswith("axpy")
    assert resolver.resolve_return(1 << 30, 0x10) == ("[unknown]+0x10", False)


def test_another_file_with_the_number_of_the_mapped_one_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resolver: AddressResolver
) -> None:
    library = compile_c(tmp_path, "libsome.so", "int some_one(void) { return 1; }", "-shared", "-fPIC")
    address = ctypes.cast(ctypes.CDLL(str(library)).some_one, ctypes.c_void_p).value
    assert address is not None
    # What the kernel reports of the mapping does not fit any code of the file that is found there now.
    other = compile_c(tmp_path, "other", "int main(void) { return 0; }", "-static")
    monkeypatch.setattr(symbols, "open_mapping", lambda *_, **__: open_elf(other))
    entry = next(m for m in symbols.read_maps(os.getpid()) if m.start <= address < m.end)
    shifted = msgspec.structs.replace(entry, offset=1 << 40)
    monkeypatch.setattr(symbols, "read_maps", lambda *_, **__: [shifted])
    assert not resolver.resolve(os.getpid(), address)[1]
    assert counted(resolver) == {"file_changed": 1}


def test_text_is_read_from_the_file_and_else_from_memory(running: Running, resolver: AddressResolver) -> None:
    constant = ctypes.create_string_buffer(b"made at run time")
    assert resolver.text_at(os.getpid(), ctypes.addressof(constant), near=0x10) == b"made at run time"
    assert resolver.text_at(running.pid, 0x10, near=running.axpy) is None
    assert resolver.text_at(running.pid, (1 << 64) - 8, near=running.axpy) is None
    assert resolver.text_at(1 << 30, 0x1000, near=0x10) is None
    assert counted(resolver) == {"text_unreadable": 3}


def test_text_without_an_end_is_not_read_for_ever(resolver: AddressResolver) -> None:
    page = mmap.mmap(-1, 1 << 20)
    page.write(b"x" * (1 << 20))
    view = ctypes.c_char.from_buffer(page)
    assert resolver.text_at(os.getpid(), ctypes.addressof(view), near=0x10) is None
    del view
    page.close()


def test_text_that_ends_a_mapping_is_read(resolver: AddressResolver) -> None:
    page = mmap.mmap(-1, 8192)
    page[4000:4200] = b"k" * 199 + b"\0"
    view = ctypes.c_char.from_buffer(page)
    assert resolver.text_at(os.getpid(), ctypes.addressof(view) + 4000, near=0x10) == b"k" * 199
    del view
    page.close()


def test_addresses_that_are_nowhere_do_not_make_it_read_the_mappings_each_time(
    monkeypatch: pytest.MonkeyPatch, resolver: AddressResolver
) -> None:
    reads = []
    read = symbols.read_maps
    monkeypatch.setattr(symbols, "read_maps", lambda *a, **k: reads.append(a) or read(*a, **k))  # type: ignore[func-returns-value]
    for address in range(1000):
        resolver.resolve(os.getpid(), address)
    assert len(reads) < 60
    resolver.remember(os.getpid())
    before = len(reads)
    resolver.resolve(os.getpid(), 0x2000)
    assert len(reads) == before + 1
