"""`otelgpu ps`: which processes are reported, what of them, and how each is profiled."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from io import StringIO

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.console import Console

from otelgpu.cli import ps
from otelgpu.cli.commands import cli
from otelgpu.cli.ps import Devices, Row, Use, ask_driver, uses_of, vendor_libraries, write_table
from otelgpu.model.devices import DeviceReadings, DeviceSeen, ProcessReading

ROW = Row(
    pid=4242,
    name="serve",
    command=("python", "serve.py"),
    executable="/usr/bin/python3.12",
    container_id="8a3b" * 16,
    container_name="",
    pod_uid="",
    uses=(),
    libraries=("libcudart.so.12",),
)


def device(uuid: str, index: int, parent: str = "") -> DeviceSeen:
    return DeviceSeen(time_ns=0, uuid=uuid, index=index, minor=index, model="H100", parent=parent)


def reading(uuid: str, memory: Mapping[int, int | None]) -> DeviceReadings:
    processes = tuple(
        ProcessReading(
            tgid=tgid,
            device=uuid,
            memory_bytes=size,
            utilization_percent=None,
            encoder_percent=None,
            decoder_percent=None,
        )
        for tgid, size in memory.items()
    )
    return DeviceReadings(time_ns=0, uuid=uuid, values={}, processes=processes)


def shown(*rows: Row, note: str = "") -> str:
    out = StringIO()
    write_table(rows, note, Console(file=out, width=200, markup=False, emoji=False, highlight=False))
    return out.getvalue()


def test_a_process_on_two_gpus_has_both_in_order() -> None:
    uses = uses_of(
        [device("b", 1), device("a", 0)], [reading("b", {7: 2 << 30}), reading("a", {7: 1 << 30, 8: None})]
    )
    assert [(use.index, use.memory_bytes) for use in uses[7]] == [(0, 1 << 30), (1, 2 << 30)]
    assert [use.memory_bytes for use in uses[8]] == [None]


def test_a_device_that_went_meanwhile_is_left_out() -> None:
    assert uses_of([], [reading("gone", {7: 1})]) == {}


def test_memory_is_summed_over_devices_and_unknown_where_nobody_reports() -> None:
    uses = tuple(
        Use(uuid=f"u{i}", index=i, model="", memory_bytes=size) for i, size in enumerate((1 << 30, 1 << 30))
    )
    assert "2.0 GiB" in shown(replace(ROW, uses=uses))
    assert "GPU 0, GPU 1" in shown(replace(ROW, uses=uses))
    unknown = replace(uses[0], memory_bytes=None)
    assert "GiB" not in shown(replace(ROW, uses=(unknown,)))


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        (ROW, "python,cpu,offcpu,cuda,kernel,mem"),
        (replace(ROW, executable="/srv/train"), "cpu,offcpu,cuda,kernel,mem"),
        (
            replace(ROW, executable="/srv/train", libraries=("libnccl.so.2", "libibverbs.so.1")),
            "cpu,offcpu,nccl,verbs",
        ),
    ],
)
def test_the_command_asks_for_what_the_process_has(row: Row, kinds: str) -> None:
    assert row.profile == f"otelgpu profile -p 4242 -t {kinds} -d 10 -o profile-4242.html"


def test_the_printed_command_parses() -> None:
    command = cli.get_command(click.Context(cli), "profile")
    assert command is not None
    command.make_context("profile", ROW.profile.split()[2:]).close()


@pytest.mark.parametrize("width", [60, 100])
def test_a_long_command_gives_way_and_nothing_else(width: int) -> None:
    out = StringIO()
    row = replace(ROW, container_id="ab" * 32, container_name="trainer-0", command=("python", "x" * 2000))
    write_table([row], "", Console(file=out, width=width, markup=False, emoji=False, highlight=False))
    titles, reported, *_ = out.getvalue().splitlines()
    assert titles.split() == ["PID", "device", "memory", "container", "pod", "command"]
    assert reported.split()[0] == "4242" and "trainer-0" in reported
    assert reported.rstrip().endswith("x…") and len(reported) <= width


def test_control_characters_of_a_command_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in shown(replace(ROW, command=("\x1b[2Jpython",)))


def test_without_processes_and_without_a_driver_both_are_said() -> None:
    text = shown(note="no driver")
    assert "no process uses a GPU" in text
    assert "not known: no driver" in text


def test_a_driver_that_hangs_is_left_alone() -> None:
    def hangs() -> Devices:
        time.sleep(5)
        return Devices()

    assert "did not answer" in ask_driver(0.05, hangs).note


def test_libraries_of_cuda_nccl_and_verbs_are_looked_for_and_the_c_library_is_not() -> None:
    library_names = vendor_libraries()
    if not library_names:
        pytest.skip("BPF objects are not built: make bpf")
    assert {"libcuda", "libcudart", "libnccl", "libibverbs"} <= library_names
    assert "libc" not in library_names


def test_json_has_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    use = Use(uuid="GPU-1", index=0, model="H100", memory_bytes=1024)
    monkeypatch.setattr(ps, "ask_driver", lambda: Devices(note=""))
    monkeypatch.setattr(ps, "find_rows", lambda devices, library_names: [replace(ROW, uses=(use,))])
    result = CliRunner().invoke(cli, ["ps", "--json"])
    assert result.exit_code == 0
    reported = json.loads(result.stdout)
    assert reported["note"] == ""
    (process,) = reported["processes"]
    assert process["devices"] == [{"uuid": "GPU-1", "index": 0, "model": "H100", "memory_bytes": 1024}]
    assert process["command"] == ["python", "serve.py"]
    assert process["profile"].startswith("otelgpu profile -p 4242")
