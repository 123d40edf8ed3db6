"""`otelgpu profile`: what it takes, what it refuses before anybody is observed, and what it prints."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.console import Console

from otelgpu.cli import profile as command
from otelgpu.cli.commands import cli
from otelgpu.cli.profile import families_for, parse_kinds, ring_bytes
from otelgpu.cli.profile_outputs import Output, Outputs
from otelgpu.cli.profile_totals import PLACES, write_totals, written
from otelgpu.cli.replay import is_picture
from otelgpu.engine import registry
from otelgpu.errors import OtelgpuError
from otelgpu.model.profiling import ProfileKind
from otelgpu.render.profile_totals import KindTotals, SpentAt
from tests.unit.export.profile_builders import samples


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["profile", *words])
    reported = str(result.exception) if isinstance(result.exception, OtelgpuError) else result.output
    return result.exit_code, reported


def test_kinds_are_words_separated_by_commas_and_given_again() -> None:
    assert parse_kinds(("cpu,offcpu", "file")) == {ProfileKind.CPU, ProfileKind.OFFCPU, ProfileKind.FILE}


def test_all_is_every_kind() -> None:
    assert parse_kinds(("cpu,all",)) == frozenset(ProfileKind)


def test_a_kind_that_is_none_is_named_with_those_there_are() -> None:
    with pytest.raises(click.BadParameter, match=r"no kind 'gpu'.*python.*verbs, all"):
        parse_kinds(("cpu,gpu",))


def test_kinds_of_the_kernel_need_no_library_probes() -> None:
    assert families_for(frozenset({ProfileKind.CPU, ProfileKind.FILE})) == ("profile",)


def test_kinds_of_calls_bring_what_links_them_to_requests() -> None:
    assert families_for(frozenset({ProfileKind.NCCL})) == ("cuda", "http", "nccl", "profile", "sched")


def test_all_kinds_bring_every_family() -> None:
    assert set(families_for(frozenset(ProfileKind))) == {*registry.select(()), "profile", "torch"}


@pytest.mark.parametrize(("megabytes", "size"), [(1, 1 << 20), (3, 4 << 20), (8, 8 << 20), (1000, 1 << 30)])
def test_a_buffer_is_the_next_power_of_two(megabytes: int, size: int) -> None:
    assert ring_bytes(megabytes) == size


@pytest.mark.parametrize("words", [(), ("-p", "1", "--container", "8a3b"), ("-p", "1", "--", "true")])
def test_one_target_is_needed_and_only_one(words: tuple[str, ...]) -> None:
    code, text = run(*words)
    assert code == 2
    assert "-p PID" in text


@pytest.mark.parametrize(
    "words",
    [("--frequency", "18"), ("--frequency", "998"), ("-d", "0"), ("--buffer", "0"), ("--delay", "-1")],
)
def test_numbers_out_of_range_are_refused(words: tuple[str, ...]) -> None:
    assert run("-p", "1", *words)[0] == 2


def test_a_process_that_is_not_there_is_said() -> None:
    code, text = run("-p", "4194305")
    assert (code, text) == (1, "there is no process 4194305")


def test_a_container_that_is_not_there_is_said() -> None:
    code, text = run("--container", "f" * 64)
    assert code == 1
    assert "no process runs in container" in text


def test_a_container_needs_enough_of_its_id() -> None:
    assert "four characters" in run("--container", "f")[1]


@pytest.mark.parametrize("name", ["out", "out.png", "missing/out.html", "."])
def test_a_file_that_cannot_be_made_is_refused_before_anybody_is_observed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "open_source", lambda *_: pytest.fail("it is observed"))
    code, text = run("-p", "1", "-o", str(tmp_path / name))
    assert code == 1
    assert text


def test_every_format_is_written_and_reads_as_what_it_is(tmp_path: Path) -> None:
    names = ["a.html", "a.svg", "a.pb.gz", "a.folded", "a.json", "a.speedscope.json"]
    paths = [tmp_path / name for name in names]
    with Outputs(paths) as files:
        files.write([samples(3)], [], "test")
    beginnings = [path.read_bytes()[:64].lstrip() for path in paths]
    assert beginnings[0].lower().startswith(b"<!doctype html")
    assert b"<svg" in beginnings[1] or b"<?xml" in beginnings[1]
    assert beginnings[2].startswith(b"\x1f\x8b")
    assert all(path.stat().st_size for path in paths)


def test_a_file_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(OtelgpuError, match=r"cannot write .*a\.html: Is a directory"):
        (tmp_path / "a.html").mkdir()
        Outputs([tmp_path / "a.html"])


def test_what_a_file_held_stays_until_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.folded"
    path.write_bytes(b"what was there, and is longer")
    file = Output(path)
    assert path.read_bytes() == b"what was there, and is longer"
    file.write(b"new")
    file.close()
    assert path.read_bytes() == b"new"


def test_a_file_that_was_not_written_is_not_left_behind(tmp_path: Path) -> None:
    old, new = tmp_path / "old.folded", tmp_path / "new.folded"
    old.write_bytes(b"kept")
    with pytest.raises(OtelgpuError), Outputs([old, new]):
        raise OtelgpuError("observing failed")
    assert old.read_bytes() == b"kept"
    assert not new.exists()


@pytest.mark.parametrize(
    ("name", "drawn"), [("a.html", True), ("a.PB.GZ", True), ("a.jsonl", False), ("b.JSONL", False)]
)
def test_replay_draws_what_has_the_name_of_a_picture(name: str, drawn: bool) -> None:
    assert is_picture(name) == drawn


def table(*kinds: KindTotals) -> str:
    out = StringIO()
    write_totals(kinds, Console(file=out, width=160, markup=False, emoji=False, highlight=False))
    return out.getvalue()


def off_cpu(places: int) -> KindTotals:
    rows = [
        SpentAt(leaf=f"leaf{i}", line=f"loop.py:{i} write", value=1_000_000, samples=1) for i in range(places)
    ]
    return KindTotals(
        type="off_cpu", unit="nanoseconds", value=places * 1_000_000, samples=places, places=rows
    )


def test_the_table_has_values_shares_frames_and_lines() -> None:
    text = table(off_cpu(4))
    assert "off_cpu: 4.00 ms in 4 samples" in text
    assert ["1.00", "ms", "25.0", "%", "leaf2", "loop.py:2", "write"] in [
        line.split() for line in text.splitlines()
    ]


def test_the_table_of_waits_has_their_states() -> None:
    kind = off_cpu(2)
    kind.places = [replace(kind.places[0], state="runnable"), kind.places[1]]
    found = [line.split() for line in table(kind).splitlines()]
    assert ["1.00", "ms", "50.0", "%", "runnable", "leaf0", "loop.py:0", "write"] in found
    assert ["1.00", "ms", "50.0", "%", "-", "leaf1", "loop.py:1", "write"] in found
    assert "state" not in table(off_cpu(2))


def test_a_long_table_says_how_much_it_leaves_out() -> None:
    assert "and 3 more places" in table(off_cpu(PLACES + 3))


def test_no_samples_are_said() -> None:
    assert "no samples" in table()


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(1500, "bytes", "1.5 KiB"), (1500, "count", "1,500"), (7, "posts", "7 posts")]
)
def test_values_are_written_in_their_unit(value: int, unit: str, text: str) -> None:
    assert written(value, unit) == text


def test_names_of_frames_cannot_steer_the_terminal() -> None:
    kind = off_cpu(1)
    kind.places = [SpentAt(leaf="\x1b[2J", line="", value=1, samples=1)]
    assert "\x1b" not in table(kind)


ENDS_TWICE = """
import os, signal, sys
from pathlib import Path
from otelgpu.agent import Interrupts
from otelgpu.cli.profile_outputs import Outputs
with Outputs([Path(name) for name in sys.argv[1:]]) as outputs, Interrupts(abandon=outputs.close):
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
"""


def test_a_second_ctrl_c_leaves_no_file_that_was_not_there(tmp_path: Path) -> None:
    new, old = tmp_path / "new.folded", tmp_path / "old.folded"
    old.write_text("what it held\n")
    done = subprocess.run([sys.executable, "-c", ENDS_TWICE, new, old], timeout=60, check=False)
    assert done.returncode == 130
    assert not new.exists()
    assert old.read_text() == "what it held\n"
