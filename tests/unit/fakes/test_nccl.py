"""The fake NCCL: names and layout of the real one, and ranks that wait for each other on the device."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.rig import fake_nccl_path, ranks_command, ranks_environment, run_ranks
from tests.rig.ranks import COLLECTIVES, FUNCTIONS, NcclVersion, nccl_hash, nccl_hash_before_2_24
from tests.unit.fakes.fake import SUCCESS

MS = 1_000_000
VERSIONS: tuple[NcclVersion, ...] = ("2.28.9", "2.21.5")


def addresses(version: NcclVersion) -> dict[str, tuple[int, str]]:
    with fake_nccl_path(version).open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        return {
            symbol.name: (symbol["st_value"], symbol["st_info"]["bind"])
            for symbol in symbols.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC"
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_function_is_a_weak_alias_of_its_profiling_name(version: NcclVersion) -> None:
    found = addresses(version)
    plain = {name for name in found if name.startswith("nccl")}
    assert {name for name in found if not name.startswith("nccl")} == {f"p{name}" for name in plain}
    for name in plain:
        assert found[name] == (found[f"p{name}"][0], "STB_WEAK"), name
        assert found[f"p{name}"][1] == "STB_GLOBAL", name
    assert ("ncclAlltoAll" in plain) == ("ncclCommShrink" in plain) == (version == "2.28.9")


@pytest.mark.parametrize("version", VERSIONS)
def test_says_its_version_as_the_real_file_does(version: NcclVersion) -> None:
    said = ctypes.c_int()
    assert ctypes.CDLL(str(fake_nccl_path(version))).ncclGetVersion(ctypes.byref(said)) == SUCCESS
    major, minor, patch = map(int, version.split("."))
    assert said.value == major * 10000 + minor * 100 + patch
    assert b"NCCL version %s+cuda12" % version.encode() in fake_nccl_path(version).read_bytes()


STRUCTURE = """
import ctypes, json, os
nccl = ctypes.CDLL("libnccl.so.2")
comms, buffer = (ctypes.c_void_p * 2)(), ctypes.create_string_buffer(4096)
assert nccl.ncclCommInitAll(comms, 2, None) == 0
def reduce(count=4):
    assert nccl.ncclGroupStart() == 0
    for comm in map(ctypes.c_void_p, comms):
        assert nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(count), 7, 0, comm, None) == 0
def words(at, count): return list((ctypes.c_uint64 * count).from_address(comms[1] + at))
at = json.loads(os.environ["AT"])
def counts(): return [words(at["opCount"], 1)[0], words(at["seqNumber"], 5) if at["seqNumber"] else None]
for count in (4, 4, 0):
    reduce(count)
    assert nccl.ncclGroupEnd() == 0
reduce()
inside = counts()
assert nccl.ncclGroupEnd() == 0
last = ctypes.c_void_p(comms[1])
assert nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(4), 12, 0, last, None) == 4
assert nccl.ncclBroadcast(buffer, buffer, ctypes.c_size_t(4), 7, 2, last, None) == 4
print(json.dumps({"magics": words(0, 1) + words(at["endMagic"], 1), "ids": words(at["commHash"] - 8, 2),
    "ranks": list((ctypes.c_int * 3).from_address(comms[1] + at["commHash"] + 8)),
    "inside": inside, "after": counts()}))
for comm in map(ctypes.c_void_p, comms): assert nccl.ncclCommDestroy(comm) == 0
"""


@pytest.mark.parametrize(
    ("version", "hash_at", "operations_at", "sequences_at", "end_at"),
    [("2.28.9", 1066184, 1066480, 1075728, 1082960), ("2.21.5", 13528, 13792, None, 16280)],
)
def test_a_communicator_lies_in_memory_as_the_real_one(
    version: NcclVersion,
    hash_at: int,
    operations_at: int,
    sequences_at: int | None,
    end_at: int,
    tmp_path: Path,
) -> None:
    places = {"commHash": hash_at, "opCount": operations_at, "seqNumber": sequences_at, "endMagic": end_at}
    done = subprocess.run(
        [sys.executable, "-c", STRUCTURE],
        env=ranks_environment(tmp_path, version=version, env={"AT": json.dumps(places)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["magics"] == [0x0280028002800280] * 2
    assert all(said["ids"])
    assert said["ranks"] == [1, 2, 1]
    # A member of a group counts at its end, one of no elements never.
    sequences = [[0, 0, 0, 0, 2], [0, 0, 0, 0, 3]] if sequences_at else [None, None]
    assert said["inside"] == [2, sequences[0]]
    assert said["after"] == [3, sequences[1]]
    assert not list(tmp_path.iterdir())  # the last rank removes the file


def test_hashes_are_those_of_the_real_library() -> None:
    # Of a unique id of 128 times 'a', by src/include/bitops.h and src/misc/utils.cc compiled.
    assert nccl_hash(b"a" * 128) == 0xACB5ECF1F2E295E0
    assert nccl_hash_before_2_24(b"a" * 127 + b"\xff") == 0x762250B3143A29B


def test_ranks_do_all_their_collectives_in_the_same_order(tmp_path: Path) -> None:
    ranks = run_ranks("collectives", "--ranks=4", "--collectives=97", truth=tmp_path).collectives()
    for communicator in range(3):
        first = ranks[0].of(communicator)
        assert len(first) == 97
        assert {FUNCTIONS[number] for number in first["function"]} == set(FUNCTIONS[:COLLECTIVES])
        for rank in ranks:
            for field in ("function", "sequence", "count", "group"):
                assert (rank.of(communicator)[field] == first[field]).all(), field
    assert len({one.communicators[0].hash for one in ranks}) == 1
    assert [one.communicators[2].rank for one in ranks] == [0, 0, 1, 1]
    assert len({one.communicators[2].hash for one in ranks}) == 2


def test_who_synchronises_waits_for_the_slowest_rank(tmp_path: Path) -> None:
    late_ms = 30
    options = ("--ranks=3", "--steps=4", "--load-us=0", "--late-rank=1", f"--late-us={late_ms * 1000}")
    ranks = run_ranks("training", *options, "--late=host", truth=tmp_path).training()
    for number in range(4):
        steps = [rank.steps[number] for rank in ranks]
        assert steps[1]["late_ns"] >= late_ms * MS
        assert min(step["end_ns"] for step in steps) > max(step["backward_ns"] for step in steps)
        assert all(step["wait_ns"] <= step["end_ns"] - step["optimizer_ns"] for step in steps)


def test_a_late_device_and_a_slow_link_delay_everybody(tmp_path: Path) -> None:
    # 4 MiB of an AllReduce among two pass at 0.2 GB/s in 20.97 ms; rank 0's GPU comes 40 ms later to number 1.
    environment = {"FAKE_NCCL_SLOW": "1:0.2", "FAKE_NCCL_LATE": "0:1:40000"}
    options = ("--ranks=2", "--steps=3", "--load-us=0", "--buckets=1")
    ranks = run_ranks("training", *options, truth=tmp_path, env=environment).training()
    for number, late_ms in enumerate((0, 40, 0)):
        steps = [rank.steps[number] for rank in ranks]
        came_ns = max(steps[0]["backward_ns"] + late_ms * MS, steps[1]["backward_ns"])
        assert min(step["end_ns"] for step in steps) >= came_ns + 20 * MS


def test_messages_of_a_group_do_not_wait_for_each_other(tmp_path: Path) -> None:
    ranks = run_ranks("collectives", "--ranks=3", "--collectives=200", truth=tmp_path).collectives()
    for rank in ranks:
        sent = rank.calls[rank.calls["function"] == FUNCTIONS.index("ncclSend")]
        received = rank.calls[rank.calls["function"] == FUNCTIONS.index("ncclRecv")]
        assert len(sent) == len(received) == 7
        assert (sent["peer"] == (rank.rank + 1) % 3).all()
        assert (sent["group"] == received["group"]).all() and np.all(sent["group"] > 0)
        assert all(one <= two for one, two in pairwise(rank.calls["end_ns"].tolist()))


def test_a_call_that_fails_ends_the_job(tmp_path: Path) -> None:
    environment = ranks_environment(tmp_path, env={"FAKE_NCCL_FAIL": "pncclAllReduce:3:5"})
    done = subprocess.run(
        ranks_command("collectives", "--ranks=2", "--mixed=0", "--collectives=9"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode in (3, 137)
    assert "error 5" in done.stderr


def test_an_unreadable_setting_ends_the_program(tmp_path: Path) -> None:
    environment = ranks_environment(tmp_path, env={"FAKE_NCCL_LATE": "3:x"})
    done = subprocess.run(
        ranks_command("collectives"), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "FAKE_NCCL_LATE='3:x' cannot be read" in done.stderr


OTHERS = """
import ctypes
nccl = ctypes.CDLL("libnccl.so.2")
cuda = ctypes.CDLL("libcudart.so.12")
comms, buffer, size = (ctypes.c_void_p * 3)(), ctypes.create_string_buffer(4096), ctypes.c_size_t(8)
assert nccl.ncclCommInitAll(comms, 3, None) == 0
def each(call):
    assert nccl.ncclGroupStart() == 0
    status = {call(ctypes.c_void_p(comm)) for comm in comms}
    assert nccl.ncclGroupEnd() == 0
    assert status == {0}, status
each(lambda comm: nccl.ncclAlltoAll(buffer, buffer, size, 7, comm, None))
each(lambda comm: nccl.ncclGather(buffer, buffer, size, 7, 2, comm, None))
each(lambda comm: nccl.ncclScatter(buffer, buffer, size, 7, 0, comm, None))
error = ctypes.c_int(-1)
first, last = ctypes.c_void_p(comms[0]), ctypes.c_void_p(comms[2])
assert nccl.ncclCommGetAsyncError(first, ctypes.byref(error)) == 0 and error.value == 0
assert nccl.ncclCommGetAsyncError(last, ctypes.byref(error)) == 0 and error.value == 6
# What no other rank comes to ends when the communicator is aborted.
assert nccl.ncclAllReduce(buffer, buffer, size, 7, 0, first, None) == 0
stream = ctypes.c_void_p()
assert cuda.cudaStreamQuery(stream) == 600
for comm in map(ctypes.c_void_p, comms): assert nccl.ncclCommAbort(comm) == 0
assert cuda.cudaStreamSynchronize(stream) == 0
memory = ctypes.c_void_p()
assert nccl.ncclMemAlloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0 and memory.value
assert nccl.ncclMemFree(memory) == 0
"""


def test_errors_aborts_and_the_newer_collectives(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OTHERS],
        env=ranks_environment(tmp_path, env={"FAKE_NCCL_ASYNC_ERROR": "2:1:6"}),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
