"""From columns of profiles to threads, and back to a page: whatever a file holds."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli.commands import cli
from otelgpu.cli.page_files import stall_page_files
from otelgpu.diagnose.stall.diagnosis import diagnose
from otelgpu.diagnose.stall.observations import USED, WrittenBack, observe
from otelgpu.diagnose.stall.stall_page import stall_page
from otelgpu.diagnose.stall.verdicts import (
    Latency,
    Line,
    Rhythm,
    Spent,
    StallCost,
    StallReport,
    StallSummary,
    StallVerdict,
    ThreadPlace,
)
from otelgpu.export.file.exporter import FileExporter
from otelgpu.model.profiles import ProfileColumns, ValueType
from otelgpu.model.resource import resource
from otelgpu.model.spans import Attribute
from tests.rig import ROOT
from tests.rig.examples import examples
from tests.unit.diagnose.stall_timelines import MS, PID
from tests.unit.render.profile_columns import HOSTILE, START, profile

BYTES = {"file_bytes": "bytes", "syscalls": "count"}


def columns(
    kind: str, rows: list[tuple[int, int]], frames: tuple[str, ...], **labels: object
) -> ProfileColumns:
    """Rows of (ms after the start, value) of one thread, under one stack, the root first."""
    attributes = {"thread.id": PID, "thread.name": "python", **labels}
    return profile(
        [(frames, value) for _, value in rows],
        type_=ValueType(type=kind, unit=BYTES.get(kind, "nanoseconds")),
        times=[START + at * MS for at, _ in rows],
        owner=resource({"process.pid": PID, "process.executable.name": "python3"}),
        attributes=tuple(Attribute.of(key, [value] * len(rows)) for key, value in attributes.items()),
    )


def job(file: str = "checkpoint.bin") -> list[ProfileColumns]:
    """40 steps of 80 ms, every fifth longer by 100."""
    sleeps, writes, now = [], [], 0
    for step in range(40):
        sleeps.append((now + 60, 20 * MS))
        now += 80
        if step % 5 == 4:
            writes.append((now, 100 * MS))
            now += 100
    loop, save = "py:train:12", "py:save:31"
    sizes = [(at, 50_000_000) for at, _ in writes]
    calls = {"otelgpu.syscall.name": "write"}
    names = {"otelgpu.file.call": "write", "file.name": file}
    return [
        columns("syscall_time", sleeps, (loop, "k:[syscall]"), **{"otelgpu.syscall.name": "clock_nanosleep"}),
        columns("syscall_time", writes, (loop, save), **calls),
        columns("syscalls", [(at, 1) for at, _ in writes], (loop, save), **calls),
        columns("file_time", writes, (loop, save), **names),
        columns("file_bytes", sizes, (loop, save), **names),
        columns(
            "off_cpu", writes, (loop, save, "k:vfs_write"), **{"otelgpu.thread.state": "uninterruptible"}
        ),
    ]


def written(path: Path, batches: list[ProfileColumns]) -> Path:
    exporter = FileExporter(path)
    exporter.export_profiles(batches)
    exporter.close(5.0)
    return path


def test_columns_become_a_verdict() -> None:
    found, _ = diagnose(observe(job()))
    (verdict,) = found.verdicts
    assert (verdict.cause, verdict.file, verdict.bytes) == ("file_write", "checkpoint.bin", 50_000_000)
    assert verdict.line is not None and (verdict.line.function, verdict.line.line) == ("save", 31)
    assert list(verdict.kernel) == ["vfs_write"]
    assert verdict.thread is not None and verdict.thread.program == "python3"


def test_what_the_kernel_writes_back_is_nobodys_wait() -> None:
    requests = [
        columns("block_time", [(at, 5 * MS)], ("k:submit_bio",), **{"otelgpu.block.device": "vda", **labels})
        for at, labels in ((100, {}), (200, {"otelgpu.block.written_back_for": "pod.slice"}))
    ]
    seen = observe(requests)
    (thread,) = seen.threads
    assert [row.begin_ns - START for row in thread.of("block_time")] == [100 * MS]
    assert seen.written_back == [WrittenBack(group="pod.slice", device="vda", requests=1, spent_ns=5 * MS)]


def test_a_file_is_read_and_its_exit_code_says_that_something_was_found(tmp_path: Path) -> None:
    path = written(tmp_path / "profile.jsonl", job())
    result = CliRunner().invoke(cli, ["diagnose", "stall", str(path)])
    assert result.exit_code == 3, result.output
    assert "writes 50.0 MB to checkpoint.bin at model.py:31 save" in result.output
    assert "limit: from a file" in result.output
    document = CliRunner().invoke(cli, ["diagnose", "stall", str(path), "--json"])
    assert json.loads(document.stdout)["verdicts"][0]["rhythm"] == {
        "times": 8,
        "steps": 40,
        "every": 5,
        "period_s": 0.5,
    }


def test_a_healthy_file_has_exit_code_0_and_one_without_waits_4(tmp_path: Path) -> None:
    sleeps = [(80 * step, 20 * MS) for step in range(40)]
    label = {"otelgpu.syscall.name": "clock_nanosleep"}
    healthy = written(
        tmp_path / "healthy.jsonl", [columns("syscall_time", sleeps, ("py:train:12",), **label)]
    )
    assert CliRunner().invoke(cli, ["diagnose", "stall", str(healthy)]).exit_code == 0
    only_cpu = written(tmp_path / "cpu.jsonl", [columns("cpu", [(at, 10 * MS) for at in range(90)], ("a",))])
    result = CliRunner().invoke(cli, ["diagnose", "stall", str(only_cpu)])
    assert result.exit_code == 4
    assert "profile -t cpu,offcpu,syscall,file" in result.output


def test_a_profile_without_times_says_nothing_and_is_counted(tmp_path: Path) -> None:
    folded = tmp_path / "stacks.folded"
    folded.write_text("main;work 12\n")
    result = CliRunner().invoke(cli, ["diagnose", "stall", str(folded)])
    assert result.exit_code == 4, result.output


def test_a_page_is_written_whole_and_names_are_text(tmp_path: Path) -> None:
    path = written(tmp_path / "profile.jsonl", job(file=HOSTILE[0]))
    page = tmp_path / "page.html"
    result = CliRunner().invoke(cli, ["diagnose", "stall", str(path), "-o", str(page)])
    assert result.exit_code == 3, result.output
    text = page.read_text()
    assert "Diagnosis of stalls" in text and HOSTILE[0] not in text and "\\u003c/script>" in text
    assert "{{" not in text.replace(HOSTILE[4], "")


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_names_are_printable(number: int, tmp_path: Path) -> None:
    found, judged = diagnose(observe(job(file=HOSTILE[number])))
    assert found.verdicts[0].file == HOSTILE[number].encode(errors="replace").decode()
    assert stall_page(found, judged, stall_page_files(), title="x")


@examples(40)
@given(
    times=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12),
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=12, max_size=12),
    tids=st.lists(st.integers(-(2**31), 2**31), min_size=12, max_size=12),
    kind=st.sampled_from(sorted(USED)),
    file=st.sampled_from(HOSTILE),
)
def test_whatever_rows_say_there_is_a_report(
    times: list[int], values: list[int], tids: list[int], kind: str, file: str
) -> None:
    count = len(times)
    batch = profile(
        [(("py:train:12", "k:vfs_write"), value) for value in values[:count]],
        type_=ValueType(type=kind, unit="nanoseconds"),
        times=times,
        attributes=(
            Attribute.of("thread.id", tids[:count]),
            Attribute.of("file.name", [file] * count),
            Attribute.of("otelgpu.file.call", [3] * count),
        ),
    )
    found, judged = diagnose(observe([*job(), batch]))
    assert found.input.processes >= 1
    assert len(stall_page(found, judged, stall_page_files(), title=file)) < 1_000_000


def test_every_field_of_the_document_is_in_the_manual() -> None:
    text = (ROOT / "docs" / "reference" / "stalls.md").read_text(encoding="utf-8")
    structs = (StallReport, StallVerdict, StallSummary, Spent, Line, ThreadPlace, Rhythm, Latency, StallCost)
    fields = {field.encode_name for each in structs for field in msgspec.structs.fields(each)}
    assert {name for name in fields if f'"{name}"' not in text and f"`{name}`" not in text} == set()
