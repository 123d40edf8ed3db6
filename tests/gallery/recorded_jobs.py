"""What was recorded of a program of the gallery of low utilisation, as a file: rules are tried on it in milliseconds.

``python -m tests.gallery.recorded_jobs FILE ARGUMENT…`` is ``otelgpu diagnose utilization ARGUMENT…``, which leaves
what it judged in ``FILE``: JSON, compressed by xz. Times begin at :data:`~tests.gallery.recordings.BEGIN_NS`, paths are
as there, and of the machine there is nothing.
"""

from __future__ import annotations

import lzma
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, structs

from otelgpu.cli.utilization import installed_peaks
from otelgpu.diagnose.stall.surroundings import Surroundings
from otelgpu.diagnose.utilization.devices import DeviceUse
from otelgpu.diagnose.utilization.diagnosis import Job, diagnose
from otelgpu.diagnose.utilization.gpu_calls import DeviceTimes, GpuCalls
from otelgpu.diagnose.utilization.job_facts import Calls
from otelgpu.diagnose.utilization.job_processes import JobProcess
from otelgpu.diagnose.utilization.lost import Lost
from otelgpu.diagnose.utilization.verdicts import UtilizationReport
from tests.gallery.recordings import BEGIN_NS, Packed, begin_of, observations, pack

FOLDER: Final = Path(__file__).parent / "recorded_jobs"
_TIMES: Final = ("begin_ns", "end_ns")


class RecordedJob(Struct, frozen=True, kw_only=True):
    """A :class:`Job`. ``calls``, ``times``: columns by name, each time as the difference to the one before."""

    seen: Packed
    calls: Mapping[str, Sequence[int]]
    times: Mapping[str, Sequence[int]]
    watched_ns: tuple[int, int]
    subjects: Sequence[int]
    processes: Mapping[int, JobProcess] | None
    devices: Sequence[DeviceUse] | None
    device_note: str
    rejected: Mapping[str, int]
    lost: Lost
    names: Calls | None
    surroundings: Mapping[int, Surroundings]


def save(path: Path, job: Job) -> None:
    """Write a recording."""
    begin = begin_of(job.observations)
    made = RecordedJob(
        seen=pack(job.observations),
        calls=_columns(job.calls, begin),
        times=_columns(job.times, begin),
        watched_ns=(job.watched_ns[0] - begin, job.watched_ns[1] - begin),
        subjects=job.subjects,
        processes=job.processes,
        devices=job.devices,
        device_note=job.device_note,
        rejected=job.rejected,
        lost=job.lost,
        names=job.names,
        surroundings=job.surroundings,
    )
    path.write_bytes(lzma.compress(msgspec.json.encode(made)))


def read(path: Path) -> Job:
    """What :func:`save` wrote."""
    made = msgspec.json.decode(lzma.decompress(path.read_bytes()), type=RecordedJob)
    kept = {name: value for name, value in structs.asdict(made).items() if name not in _MADE_ANEW}
    return Job(
        observations=observations(made.seen),
        calls=GpuCalls(**_arrays(made.calls, to_host=np.bool_)),
        times=DeviceTimes(**_arrays(made.times, is_kernel=np.bool_)),
        watched_ns=(BEGIN_NS + made.watched_ns[0], BEGIN_NS + made.watched_ns[1]),
        peaks=installed_peaks(),
        **kept,
    )


_MADE_ANEW: Final = frozenset(("seen", "calls", "times", "watched_ns"))


def judge(path: Path) -> UtilizationReport:
    """What is said of a recording now."""
    return diagnose(read(path))[0]


def _columns(of: GpuCalls | DeviceTimes, begin: int) -> dict[str, list[int]]:
    found = {}
    for name, column in structs.asdict(of).items():
        values = column.astype(np.int64)
        found[name] = np.diff(values, prepend=begin).tolist() if name in _TIMES else values.tolist()
    return found


def _arrays(columns: Mapping[str, Sequence[int]], **types: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in columns.items():
        column = np.array(values, np.int64)
        found[name] = (
            BEGIN_NS + np.cumsum(column) if name in _TIMES else column.astype(types.get(name, np.int64))
        )
    return found


def main(path: Path, arguments: Sequence[str]) -> None:
    """The command, which keeps what it judges."""
    from otelgpu.cli import utilization
    from otelgpu.cli.main import main as program

    def keep(job: Job) -> Any:
        save(path, job)
        return diagnose(job)

    utilization.diagnose = keep
    sys.argv = ["otelgpu", "diagnose", "utilization", *arguments]
    program()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
