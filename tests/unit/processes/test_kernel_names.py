"""Records → names of what was launched and of where memory was allocated."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from otelgpu.elf.image import ElfImage
from otelgpu.model.inputs import Batch
from otelgpu.processes import address_resolver as symbols
from otelgpu.processes import kernel_names
from otelgpu.processes.address_resolver import AddressResolver
from otelgpu.processes.kernel_names import KernelNamer, NameKinds
from otelgpu.processes.maps import executable_mappings
from tests.unit.elf.elf_builders import compile_c
from tests.unit.families.records import btf
from tests.unit.symbols.cuda_programs import compile_program

KINDS = NameKinds(kernel=14, registration=15)
LAUNCH, ALLOCATION, COPY = 1, 4, 3


def calls(*rows: dict[str, int], kind: int = LAUNCH, tgid: int = 100, time_ns: int = 0) -> Batch:
    records = np.zeros(len(rows), btf("cuda").dtype("cuda_call"))
    head = records["head"]
    head["time_ns"], head["tgid"], head["kind"] = time_ns, tgid, kind
    for record, row in zip(records, rows, strict=True):
        for field, value in row.items():
            record[field] = value
    return Batch(family="cuda", kind="cuda_call", records=records)


def named(
    handle: int, text: str, *, tgid: int = 100, status: int = 0, length: int | None = None, time_ns: int = 0
) -> Batch:
    records = np.zeros(1, btf("cuda").dtype("cuda_name"))
    head = records["head"]
    head["time_ns"], head["tgid"], head["kind"] = (
        time_ns,
        tgid,
        btf("cuda").enumerators("cuda_kind")["CUDA_NAME"],
    )
    records["object"], records["status"], records["text"] = handle, status, text.encode()
    records["length"] = len(text.encode()) if length is None else length
    return Batch(family="cuda", kind="cuda_name", records=records)


@pytest.fixture
def resolver() -> Iterator[AddressResolver]:
    made = AddressResolver()
    yield made
    made.close()


@pytest.fixture
def namer(resolver: AddressResolver) -> KernelNamer:
    return KernelNamer(resolver)


def ask(namer: KernelNamer, *batches: Batch) -> dict[int, str]:
    for batch in batches:
        namer.learn(batch, KINDS)
    return {answer.address: answer.name for batch in batches for answer in namer.name(batch)}


class Program:
    """A running program that prints the addresses of its host stubs."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.stubs = [int(self.process.stdout.readline(), 16) for _ in range(3)]

    def end(self) -> None:
        self.process.communicate(timeout=10)


@pytest.fixture
def stripped(tmp_path: Path) -> Iterator[Program]:
    program = Program(compile_program(tmp_path, "stripped", "-O2"))
    yield program
    program.end()


READABLE = ["axpy(float, float*, float*)", "void model::scale<3, float>(float*)", "plain"]


def test_stubs_of_a_stripped_program_are_named_like_their_kernels(
    namer: KernelNamer, stripped: Program, resolver: AddressResolver
) -> None:
    launches = calls(*({"function": stub} for stub in stripped.stubs), tgid=stripped.process.pid)
    assert list(ask(namer, launches).values()) == READABLE
    assert not any(resolver.counters.values())


def test_of_a_launch_that_no_symbol_names_the_file_and_the_place_in_it_are_known(
    namer: KernelNamer, tmp_path: Path
) -> None:
    path = compile_c(tmp_path, "hidden.so", "int f(void) { return 1; }", *("-shared", "-s", "-Wl,--build-id"))
    ctypes.CDLL(str(path))  # its code begins with what the linker puts there, which has no symbol
    code = next(each for each in executable_mappings(os.getpid()) if each.path == str(path))
    launch = calls({"function": code.start}, tgid=os.getpid())
    namer.learn(launch, KINDS)
    (found,) = namer.name(launch)
    assert (found.name, found.known) == (f"hidden.so+{code.offset:#x}", False)
    assert (found.module, found.offset) == ("hidden.so", code.offset)
    assert found.build_id == ElfImage(path.read_bytes()).build_id


def test_a_registration_names_a_stub_of_any_program(namer: KernelNamer) -> None:
    text = ctypes.create_string_buffer(b"_Z4axpyfPfS_")
    stub = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value or 0
    registration = calls({"object": stub, "other": ctypes.addressof(text)}, kind=15, tgid=os.getpid())
    assert ask(namer, registration, calls({"function": stub}, tgid=os.getpid())) == {
        stub: "axpy(float, float*, float*)"
    }


def test_a_registered_name_outlives_the_process(
    namer: KernelNamer, resolver: AddressResolver, tmp_path: Path
) -> None:
    # The name's string lies in the file: nothing has to be asked of the process any more.
    path = compile_program(tmp_path, "program", "-O2", kernels=("not_in_the_fatbin", "b", "c"))
    program = Program(path)
    maps = Path(f"/proc/{program.process.pid}/maps").read_text().splitlines()
    base = int(maps[0].partition("-")[0], 16)
    content = path.read_bytes()
    name = base + content.index(b"not_in_the_fatbin\0")
    resolver.remember(program.process.pid)
    program.end()
    path.unlink()
    pid, stub = program.process.pid, program.stubs[0]
    registration = calls({"object": stub, "other": name}, kind=15, tgid=pid)
    assert ask(namer, registration, calls({"function": stub}, tgid=pid)) == {stub: "not_in_the_fatbin"}


def test_a_name_that_cannot_be_read_leaves_the_symbol(namer: KernelNamer, resolver: AddressResolver) -> None:
    stub = ctypes.cast(ctypes.CDLL(None).qsort, ctypes.c_void_p).value or 0
    registration = calls({"object": stub, "other": 0x10}, kind=15, tgid=os.getpid())
    assert ask(namer, registration, calls({"function": stub}, tgid=os.getpid())) == {stub: "qsort"}
    assert resolver.counters["text_unreadable"] == 1


def test_handles_are_followed_to_the_name_that_they_were_asked_for_by(namer: KernelNamer) -> None:
    kernel_of = calls({"object": 0x8000, "other": 0x7000}, kind=14)
    assert ask(namer, named(0x7000, "triton_add_0"), kernel_of, calls({"function": 0x8000})) == {
        0x8000: "triton_add_0"
    }


def test_a_call_that_failed_reports_nothing(namer: KernelNamer) -> None:
    failed = calls({"object": 0x8000, "other": 0x7000, "status": 1}, kind=14)
    answers = ask(namer, named(0x7000, "a", status=500), failed, calls({"function": 0x8000}))
    assert answers == {0x8000: "[unknown]+0x8000"}


def test_a_name_that_was_cut_says_so(namer: KernelNamer) -> None:
    assert ask(namer, named(1, "k" * 164, length=400), calls({"function": 1})) == {1: "k" * 164 + "…"}


def test_names_cannot_carry_control_characters(namer: KernelNamer) -> None:
    assert ask(namer, named(1, "a\x1b[31m\n"), calls({"function": 1})) == {
        1: "a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}"
    }


def test_a_function_is_named_once_a_process(namer: KernelNamer) -> None:
    launches = calls(*[{"function": 1}] * 50)
    assert len(ask(namer, launches)) == 1
    assert ask(namer, launches) == {}
    assert len(ask(namer, calls({"function": 1}, tgid=101))) == 1


def test_a_handle_that_is_given_out_again_is_named_anew(namer: KernelNamer) -> None:
    launch = calls({"function": 1})
    assert ask(namer, named(1, "first"), launch) == {1: "first"}
    assert ask(namer, named(1, "second", time_ns=5), launch) == {1: "second"}
    assert ask(namer, named(1, "first", time_ns=3), launch) == {1: "second"}


def test_other_calls_are_not_named(namer: KernelNamer) -> None:
    assert ask(namer, calls({"function": 1, "caller": 2}, kind=COPY)) == {}


def test_an_allocation_is_named_by_where_it_was_called_from(namer: KernelNamer) -> None:
    qsort_r = ctypes.cast(ctypes.CDLL(None).qsort_r, ctypes.c_void_p).value or 0
    allocations = calls(
        {"caller": qsort_r + 9}, {"caller": 0}, {"caller": 0x10}, kind=ALLOCATION, tgid=os.getpid()
    )
    assert ask(namer, allocations) == {qsort_r + 9: "qsort_r+0x9", 0x10: "[unknown]+0x10"}


def test_mixed_rows_are_reported_apart_in_batches_of_any_size(
    namer: KernelNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_names, "_CHUNK_ROWS", 7)
    batch = calls(*({"function": number % 5, "caller": 100 + number % 3} for number in range(100)))
    batch.records["head"]["kind"] = [(LAUNCH, ALLOCATION, COPY)[number % 3] for number in range(100)]
    answers = ask(namer, batch)
    assert set(answers) == {0, 1, 2, 3, 4, 101}
    assert ask(namer, batch) == {}


def test_a_child_has_the_handles_of_its_parent(namer: KernelNamer) -> None:
    namer.inherit(100, 101)  # before the record that the parent wrote is read
    assert ask(namer, named(1, "kernel"), calls({"function": 1}, tgid=101)) == {1: "kernel"}


def test_a_child_that_runs_another_program_has_none(namer: KernelNamer) -> None:
    ask(namer, named(1, "kernel"))
    namer.inherit(100, 101)
    namer.forget(101)
    assert ask(namer, calls({"function": 1}, tgid=101)) == {1: "[unknown]+0x1"}


def test_what_lay_where_code_was_mapped_is_named_anew(namer: KernelNamer) -> None:
    launches = calls({"function": 0x1000}, {"function": 0x3000})
    assert set(ask(namer, launches)) == {0x1000, 0x3000}
    namer.remap(100, 0x1000, 0x2000)
    assert set(ask(namer, launches)) == {0x1000}


def test_a_flood_of_addresses_is_put_off_and_counted(
    namer: KernelNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    monkeypatch.setattr(kernel_names, "MAX_NEW_PER_BATCH", 100)
    read = symbols.read_maps
    monkeypatch.setattr(symbols, "read_maps", lambda *a, **k: reads.append(a) or read(*a, **k))  # type: ignore[func-returns-value]
    flood = calls(*({"function": number} for number in range(1, 1001)), tgid=os.getpid())
    assert len(ask(namer, flood)) == 100
    assert namer.counters["names_put_off"] == 900
    assert len(reads) < 40  # the mappings are not read again for each


def test_the_kinds_are_taken_from_the_family_that_has_them() -> None:
    assert NameKinds.of("cuda", btf("cuda").enumerators("cuda_kind")) == KINDS
    assert NameKinds.of("hip", {"HIP_LAUNCH": 1}) == NameKinds()


def test_twenty_thousand_registrations_are_kept_as_columns(namer: KernelNamer) -> None:
    batch = calls(*[{}] * 20_000, kind=15)
    batch.records["object"] = 0x1000 + 16 * np.arange(20_000)
    batch.records["other"] = 0x10
    namer.learn(batch, KINDS)
    process = namer._handles._processes[100]
    assert process.registered == 20_000 and not process.handles


def test_a_flood_of_handles_is_bounded_and_counted(
    namer: KernelNamer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_names, "MAX_HANDLES_PER_BATCH", 10)
    namer.learn(calls(*({"object": number, "other": 1} for number in range(1, 31)), kind=14), KINDS)
    assert namer.counters == {"handles_full": 20}
