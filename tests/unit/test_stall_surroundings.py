"""What is counted of a process and of all others beside a recording: files of two versions of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otelgpu.cli.stall_surroundings import between, read, read_own

PID = 2**22 + 7


def stat(pid: int, ticks: int, faults: tuple[int, int] = (0, 0), started: int = 5) -> str:
    fields = [
        "S",
        "1",
        *["0"] * 5,
        str(faults[0]),
        "0",
        str(faults[1]),
        "0",
        str(ticks),
        "0",
        *["0"] * 6,
        str(started),
    ]
    return f"{pid} (a) b) {' '.join([*fields, *['0'] * 30])}\n"


def process(proc: Path, pid: int, ticks: int, *, group: str = "0::/job\n", **more: object) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(stat(pid, ticks, **more))  # type: ignore[arg-type]
    (folder / "cgroup").write_text(group)


def group(cgroups: Path, name: str, files: dict[str, str]) -> None:
    folder = cgroups / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)


@pytest.mark.parametrize("version", [1, 2])
def test_what_was_counted_meanwhile_is_the_difference(version: int, tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    name, line = (
        ("job", "0::/job\n") if version == 2 else ("cpu/job", "2:cpu,cpuacct:/job\n1:name=systemd:/\n")
    )
    unit = ("throttled_usec", 1e6) if version == 2 else ("throttled_time", 1e9)
    quota = (
        {"cpu.max": "50000 100000"}
        if version == 2
        else {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}
    )
    cgroups.mkdir()
    if version == 2:
        (cgroups / "cgroup.controllers").write_text("cpu")
    readings = []
    for times, seconds, ticks in ((10, 1.0, 100), (25, 3.5, 400)):
        group(
            cgroups,
            name,
            {
                "cpu.stat": f"nr_periods {times * 2}\nnr_throttled {times}\n{unit[0]} {int(seconds * unit[1])}\n",
                **quota,
            },
        )
        process(proc, PID, ticks, group=line, faults=(ticks, times))
        process(proc, PID + 1, ticks)
        readings.append(read(PID, proc=proc, cgroups=cgroups))
    found = between(*readings)
    assert (found.throttled_times, found.quota_periods) == (15, 30)
    assert (found.throttled_s, found.quota_cpus) == (2.5, 0.5)
    seconds_used = 300 / os.sysconf("SC_CLK_TCK")
    assert [(each.pid, each.cpu_s) for each in found.neighbours] == [(PID + 1, seconds_used)]
    assert (found.minor_faults, found.major_faults) == (300, 15)
    assert found.others_cpu_s == pytest.approx(seconds_used)
    assert between(*readings, mine=frozenset((PID + 1,))).neighbours == []


@pytest.mark.parametrize(
    ("quotas", "name", "cpus"),
    [
        (("max", "50000", "max"), "pod/job", 0.5),
        (("max", "50000", "20000"), "pod/job/own", 0.2),
        (("10000", "50000", "20000"), "pod", 0.1),
        (("max", "max", "max"), "pod/job/own", None),
    ],
)
def test_the_tightest_quota_of_a_group_and_those_above_it_counts(
    tmp_path: Path, quotas: tuple[str, str, str], name: str, cpus: float | None
) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    process(proc, PID, 100, group="0::/pod/job/own\n")
    for folder, quota in zip(("pod", "pod/job", "pod/job/own"), quotas, strict=True):
        group(cgroups, folder, {"cpu.max": f"{quota} 100000"})
    group(cgroups, "", {"cgroup.controllers": "cpu"})
    (tmp_path / "cpu.max").write_text("1 100000")  # of nothing
    found = read_own(PID, proc=proc, cgroups=cgroups)
    assert (found.group, found.quota_cpus) == (cgroups / name, cpus)


def test_who_came_into_another_group_has_no_difference(tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    cgroups.mkdir()
    (cgroups / "cgroup.controllers").write_text("cpu")
    for name in ("one", "other"):
        group(cgroups, name, {"cpu.stat": "nr_throttled 9\nthrottled_usec 9\n", "cpu.max": "10000 100000"})
    process(proc, PID, 1, group="0::/one\n")
    before = read(PID, proc=proc, cgroups=cgroups)
    process(proc, PID, 1, group="0::/other\n")
    found = between(before, read(PID, proc=proc, cgroups=cgroups))
    assert found.throttled_s is None and found.quota_cpus == 0.1


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("0::/../../etc\n", {}),
        ("0::/job\n", {"cpu.stat": "nr_throttled x\nthrottled_usec -1\n", "cpu.max": "max 100000"}),
        ("0::/job\n", {"cpu.stat": "\x00" * 100_000, "cpu.max": "1 0"}),
        ("nonsense", {}),
    ],
)
def test_what_cannot_be_read_says_nothing(line: str, files: dict[str, str], tmp_path: Path) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    cgroups.mkdir()
    (cgroups / "cgroup.controllers").write_text("cpu")
    group(cgroups, "job", files)
    process(proc, PID, 1, group=line)
    reading = read(PID, proc=proc, cgroups=cgroups)
    found = between(reading, reading)
    assert (found.throttled_s, found.quota_cpus) == (None, None)


def test_a_process_that_is_gone_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    reading = read(PID, proc=tmp_path / "proc", cgroups=tmp_path)
    assert between(reading, reading).neighbours == []


def test_pages_made_dirty_are_charged_to_who_made_them(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    before = {PID: "write_bytes: 1000\n", PID + 1: "write_bytes: 70\n", PID + 2: "write_bytes: 9\n"}
    after = {
        PID: "rchar: 1\nwrite_bytes: 5000\ncancelled_write_bytes: 7\n",
        PID + 1: "write_bytes: 90\n",
        PID + 2: "write_bytes: 9\n",
        PID + 3: "write_bytes: 300\n",  # it began meanwhile
        PID + 4: "write_bytes: many\n",
        PID + 5: "write_bytes: 800\n",  # part of what was recorded
    }
    readings = []
    for counts in (before, after):
        for pid, text in counts.items():
            process(proc, pid, 1)
            (proc / str(pid) / "io").write_text(text)
        readings.append(read(PID, proc=proc, cgroups=tmp_path))
    found = between(*readings, frozenset((PID, PID + 5)), pid=PID)
    assert (found.dirtied_bytes, found.others_dirtied_bytes) == (4000, 320)
    assert [(each.pid, each.dirtied_bytes) for each in found.writers] == [(PID + 3, 300), (PID + 1, 20)]


def test_a_number_that_another_process_has_now_is_counted_from_its_beginning(tmp_path: Path) -> None:
    proc, readings = tmp_path / "proc", []
    process(proc, PID, 1)
    for started, size in ((5, 900), (6, 1000)):
        process(proc, PID + 1, 1, started=started)
        (proc / str(PID + 1) / "io").write_text(f"write_bytes: {size}\n")
        readings.append(read(PID, proc=proc, cgroups=tmp_path))
    found = between(*readings, pid=PID)
    assert found.dirtied_bytes is None  # nobody lets us look
    assert [each.dirtied_bytes for each in found.writers] == [1000]
