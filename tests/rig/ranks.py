"""Jobs of ranks on the fake NCCL: program_collectives and program_training of tests/fakes/programs.

In: options of their C sources. Out: running ranks, and what each says it did: numpy rows for collectives, a
dictionary a step for training. All reach the device of the fake libcuda.so.1.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tests.rig.fakes import build_fakes
from tests.rig.programs import program_environment

NcclVersion = Literal["2.28.9", "2.21.5"]
RankProgram = Literal["collectives", "training"]
Step = dict[str, Any]

CALL: Final = np.dtype(
    [
        ("start_ns", "<i8"),  # CLOCK_MONOTONIC, around the call
        ("end_ns", "<i8"),
        ("count", "<u8"),  # elements; of a group: calls in it
        ("sequence", "<u8"),  # earlier calls of this function on this communicator
        ("stream", "<u8"),
        ("tid", "<i4"),
        ("peer", "<i4"),  # or root; -1: none
        ("group", "<u4"),  # ordinal of the thread, from 1; 0: in none
        ("communicator", "u1"),  # index
        ("function", "u1"),  # index into FUNCTIONS
        ("datatype", "u1"),
        ("reduction", "u1"),
    ]
)
"""struct call of collectives.c."""
FUNCTIONS: Final = (
    "ncclAllReduce",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclBroadcast",
    "ncclReduce",
    "ncclSend",
    "ncclRecv",
    "ncclGroupEnd",
)
COLLECTIVES: Final = 5
"""The first of FUNCTIONS are those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One rank's view of a communicator; `hash` as NCCL computes it, worked out here a second time."""

    hash: int
    rank: int
    ranks: int
    address: int
    parent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTruth:
    """What one rank of program_collectives did: `calls` has dtype CALL, in order."""

    rank: int
    pid: int
    communicators: Sequence[Communicator]
    calls: npt.NDArray[np.void]

    def of(self, communicator: int, function: str | None = None) -> npt.NDArray[np.void]:
        """Collectives of one communicator, of one function or of all."""
        mine = (self.calls["communicator"] == communicator) & (self.calls["function"] < COLLECTIVES)
        if function is not None:
            mine &= self.calls["function"] == FUNCTIONS.index(function)
        chosen: npt.NDArray[np.void] = self.calls[mine]
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTruth:
    """What one rank of program_training did: `steps` and `evaluations` as its source describes them."""

    rank: int
    ranks: int
    pid: int
    hash: int
    compute_stream: int
    communication_stream: int
    steps: Sequence[Step]
    evaluations: Sequence[Step]


def nccl_hash(content: bytes) -> int:
    """commHash of a unique id as 2.26 and later compute it (src/include/bitops.h: eatHash, digestHash)."""
    return _digest(_eat((1, 1), content))


def nccl_hash_before_2_24(content: bytes) -> int:
    """The same of 2.18 to 2.23: DJB2a over signed bytes (src/misc/utils.cc: getHash)."""
    value = 5381
    for byte in content:
        value = (value * 33 ^ (byte - 256 if byte > 127 else byte)) & _U64
    return value


def child_hash(parent: int, number: int, color: int) -> int:
    """commHash of a communicator split from another in its split of this number, from 1 (src/init.cc)."""
    state = _eat((1, 1), parent.to_bytes(8, "little"))
    state = _eat(state, number.to_bytes(4, "little", signed=True))
    return _digest(_eat(state, color.to_bytes(4, "little", signed=True)))


_U64: Final = (1 << 64) - 1


def _eat(state: tuple[int, int], content: bytes) -> tuple[int, int]:
    first, second = state
    first ^= len(content)
    for at in range(0, len(content), 8):
        first = (first + second) & _U64
        second ^= first
        first = ((first ^ first >> 31) * 0x9DE62BBC8CEF3CE3) & _U64
        second = ((second ^ second >> 32) * 0x485CD6311B599E79) & _U64
        first = (first + int.from_bytes(content[at : at + 8], "little")) & _U64
    return first, second


def _digest(state: tuple[int, int]) -> int:
    value = ((state[0] ^ state[0] >> 31) * 0xBAC3BD562846DE6B + state[1]) & _U64
    return ((value ^ value >> 32) * 0x995A187A14E7B445) & _U64


def fake_nccl_path(version: NcclVersion = "2.28.9") -> Path:
    """The built fake libnccl.so.2 with the layout of that version."""
    folder = build_fakes()
    return (folder if version == "2.28.9" else folder / f"nccl-{version}") / "libnccl.so.2"


def ranks_environment(
    meeting: Path, *, version: NcclVersion = "2.28.9", env: Mapping[str, str] | None = None
) -> dict[str, str]:
    """As `program_environment`, with eight devices, the fake NCCL first, and a folder to meet in."""
    made = program_environment(
        {"FAKE_CUDART_DEVICES": "8", "FAKE_NCCL_DIRECTORY": str(meeting), **(env or {})}
    )
    made["LD_LIBRARY_PATH"] = f"{fake_nccl_path(version).parent}:{made['LD_LIBRARY_PATH']}"
    return made


def ranks_command(program: RankProgram, *options: str, truth: Path | None = None) -> list[str]:
    """The command line of a job; `truth` is an existing folder."""
    said = [f"--truth={truth}"] if truth else []
    return [str(build_fakes() / f"program_{program}"), *said, *options]


class Ranks:
    """A running job: `pids` of its ranks, by rank. With ``--wait=1`` it waits at a gate until `open_gate`."""

    def __init__(self, process: subprocess.Popen[str], truth: Path) -> None:
        self.process = process
        self.truth = truth
        assert process.stderr is not None
        line = process.stderr.readline()
        while line and not line.startswith("ready "):  # who runs it may say something first
            line = process.stderr.readline()
        self.pids = [int(pid) for pid in line.split()[2:]]
        if not self.pids:
            raise RuntimeError(f"the ranks did not start (exit code {process.poll()})")

    def open_gate(self) -> None:
        """Let the ranks go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait_for_gate(self) -> None:
        """Until all ranks are at the next gate (``--gates=1``, ``--pause=N``)."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        if not line.startswith("gate "):
            raise RuntimeError(f"the ranks came to no gate: {line}{self.process.stderr.read()}")

    def finish(self, timeout_s: float = 120) -> None:
        """Wait for its end; `RuntimeError` when it failed."""
        _, stderr = self.process.communicate(timeout=timeout_s)
        if self.process.returncode:
            raise RuntimeError(f"the ranks failed (exit code {self.process.returncode}):\n{stderr}")

    def collectives(self, version: NcclVersion = "2.28.9") -> list[RankTruth]:
        """What each rank of program_collectives says it did, after its end."""
        return [read_collectives(self.truth, rank, version) for rank in range(len(self.pids))]

    def training(self) -> list[TrainingTruth]:
        """What each rank of program_training says it did, after its end."""
        return [read_training(self.truth, rank) for rank in range(len(self.pids))]


def read_collectives(truth: Path, rank: int, version: NcclVersion = "2.28.9") -> RankTruth:
    """The files of one rank of program_collectives. Split communicators of 2.21.5 have no hash here: 0."""
    said = json.loads((truth / f"rank-{rank}.json").read_text())
    hash_id = nccl_hash if version == "2.28.9" else nccl_hash_before_2_24
    communicators: list[Communicator] = []
    splits = 0
    for one in said["communicators"]:
        if one["parent"] < 0:
            value = hash_id(bytes.fromhex(one["id"]))
        else:
            splits += 1
            parent = communicators[one["parent"]].hash
            value = child_hash(parent, splits, one["color"]) if version == "2.28.9" else 0
        communicators.append(
            Communicator(
                hash=value,
                rank=one["rank"],
                ranks=one["ranks"],
                address=one["address"],
                parent=one["parent"] if one["parent"] >= 0 else None,
            )
        )
    calls = np.fromfile(truth / f"rank-{rank}.bin", CALL)
    return RankTruth(rank=rank, pid=said["pid"], communicators=communicators, calls=calls)


def read_training(truth: Path, rank: int) -> TrainingTruth:
    """The file of one rank of program_training."""
    first, *rest = map(json.loads, (truth / f"rank-{rank}.jsonl").read_text().splitlines())
    return TrainingTruth(
        rank=first["rank"],
        ranks=first["ranks"],
        pid=first["pid"],
        hash=nccl_hash(bytes.fromhex(first["id"])),
        compute_stream=first["compute_stream"],
        communication_stream=first["communication_stream"],
        steps=[line for line in rest if "step" in line],
        evaluations=[line for line in rest if "evaluation" in line],
    )


@contextlib.contextmanager
def start_ranks(
    program: RankProgram,
    *options: str,
    truth: Path,
    prefix: Sequence[str] = (),
    version: NcclVersion = "2.28.9",
    env: Mapping[str, str] | None = None,
) -> Iterator[Ranks]:
    """Start a job whose ranks write into the folder `truth`; `prefix` is a command that runs it.

    What still runs at the end of the block is killed, with its ranks.
    """
    meeting = tempfile.mkdtemp(prefix="ranks-", dir="/dev/shm")
    process = subprocess.Popen(
        [*prefix, *ranks_command(program, *options, truth=truth)],
        env=ranks_environment(Path(meeting), version=version, env=env),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Ranks(process, truth)
    finally:
        if process.poll() is None:
            process.kill()  # the ranks follow: PR_SET_PDEATHSIG
            process.wait()
        for pipe in (process.stdin, process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        shutil.rmtree(meeting, ignore_errors=True)


def run_ranks(
    program: RankProgram,
    *options: str,
    truth: Path,
    prefix: Sequence[str] = (),
    version: NcclVersion = "2.28.9",
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
) -> Ranks:
    """Run a job to its end; as `start_ranks` otherwise."""
    with start_ranks(program, *options, truth=truth, prefix=prefix, version=version, env=env) as ranks:
        ranks.finish(timeout_s)
    return ranks
