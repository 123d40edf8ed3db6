"""``otelgpu ps``: processes that use GPUs, and how to profile each.

In: what drivers report of devices, which libraries processes have mapped, where they run. Out: a table, or JSON.
Nothing is changed, and nothing is loaded into the kernel. Arguments of programs are shown, as ps(1) does, and go
nowhere else.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click
from msgspec import Struct, field
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from otelgpu.cli.check import wanted_symbols
from otelgpu.cli.headings import HeadedCommand
from otelgpu.engine import registry
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import read_image
from otelgpu.model.devices import DeviceReadings, DeviceSeen
from otelgpu.model.profiling import DEVICE_PROFILES, ProfileKind
from otelgpu.model.quantities import size
from otelgpu.model.text import printable
from otelgpu.processes.libraries import library_name_of
from otelgpu.processes.listing import ProcessFacts, describe, guess_service_name, list_processes
from otelgpu.processes.maps import distinct_files, executable_mappings
from otelgpu.sources.discoveries import discovery_of
from otelgpu.sources.pollers import looks

PATIENCE_S: Final = 5.0
"""How long the driver has to answer; it may take as long as it likes."""
_WIDE: Final = 400  # columns of what is written to no terminal: a process a line
_TITLES: Final = ("PID", "device", "memory", "container", "pod", "command")
_BETWEEN: Final = 2  # columns between two
_LEAST: Final = 20  # columns of a command


class Use(Struct, frozen=True, kw_only=True):
    """That a process is on a device. ``memory_bytes`` None: the driver does not report."""

    uuid: str
    index: int
    model: str
    memory_bytes: int | None

    def label(self) -> str:
        """``GPU 0``; a MIG device has no number of its own."""
        return f"GPU {self.index}" if 0 <= self.index < 1 << 16 else self.uuid[:12]


class Devices(Struct, frozen=True, kw_only=True):
    """What the driver says: which process is on which device; ``note``: why it says nothing, "" when it does."""

    uses: Mapping[int, tuple[Use, ...]] = field(default_factory=dict)
    note: str = ""


class Row(Struct, frozen=True, kw_only=True):
    """A process that is reported. ``libraries``: file names of the vendors' libraries that it has mapped."""

    pid: int
    name: str
    command: tuple[str, ...]
    executable: str
    container_id: str
    container_name: str
    pod_uid: str
    uses: tuple[Use, ...]
    libraries: tuple[str, ...]

    @property
    def profile(self) -> str:
        """The command that profiles it."""
        kinds = ["python"] if _is_python(self.executable) else []
        kinds += ["cpu", "offcpu"]
        mapped = {library_name_of(name) for name in self.libraries}
        kinds += DEVICE_PROFILES if self.uses else ()
        for suggested in _suggested().values():
            kinds += [kind for library, found in suggested.items() if library in mapped for kind in found]
        asked = ",".join(dict.fromkeys(kinds))
        return f"otelgpu profile -p {self.pid} -t {asked} -d 10 -o profile-{self.pid}.html"

    def shown(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "pid": self.pid,
            "name": self.name,
            "command": list(self.command),
            "executable": self.executable,
            "container_id": self.container_id,
            "container_name": self.container_name,
            "pod_uid": self.pod_uid,
            "devices": [
                {
                    "uuid": use.uuid,
                    "index": use.index,
                    "model": use.model,
                    "memory_bytes": use.memory_bytes,
                }
                for use in self.uses
            ],
            "libraries": list(self.libraries),
            "profile": self.profile,
        }


def _is_python(executable: str) -> bool:
    return os.path.basename(executable).startswith("python")


def uses_of(devices: Sequence[DeviceSeen], readings: Sequence[DeviceReadings]) -> dict[int, tuple[Use, ...]]:
    """Process → the devices that it is on, by index."""
    seen = {device.uuid: device for device in devices}
    found: dict[int, list[Use]] = {}
    for reading in readings:
        for process in reading.processes:
            device = seen.get(process.device)
            if device is None:
                continue
            found.setdefault(process.tgid, []).append(
                Use(
                    uuid=device.uuid,
                    index=device.index,
                    model=device.model,
                    memory_bytes=process.memory_bytes,
                )
            )
    return {tgid: tuple(sorted(uses, key=lambda use: (use.index, use.uuid))) for tgid, uses in found.items()}


def ask_driver(patience_s: float = PATIENCE_S, ask: Callable[[], Devices] | None = None) -> Devices:
    """What drivers say, or why they say nothing. One that does not answer in time is left alone."""
    answers: list[Devices] = []
    asking = threading.Thread(
        target=lambda: answers.append((ask or _ask)()), name="otelgpu-ps-devices", daemon=True
    )
    asking.start()
    asking.join(patience_s)
    return answers[0] if answers else Devices(note=f"the driver did not answer within {patience_s:g} s")


def _ask() -> Devices:
    found = list(looks())
    inputs = [item for look in found for item in look.inputs]
    devices = [item for item in inputs if isinstance(item, DeviceSeen)]
    readings = [item for item in inputs if isinstance(item, DeviceReadings)]
    return Devices(uses=uses_of(devices, readings), note="; ".join(look.note for look in found if look.note))


def _suggested() -> dict[str, Mapping[str, tuple[ProfileKind, ...]]]:
    """Of the families whose libraries make a process worth showing: library name → kinds of profile."""
    found = {name: discovery_of(name).profiles.suggested for name in registry.with_records()}
    return {name: suggested for name, suggested in found.items() if suggested}


def vendor_libraries() -> frozenset[str]:
    """Names of the libraries that probes of GPU work are for."""
    images = []
    for family in _suggested():
        try:
            images.append(read_image(family))
        except BpfError:
            continue  # not built: `otelgpu check` says so
    return frozenset(
        library for library in wanted_symbols(images) if library.startswith("lib") and library != "libc"
    )


def find_rows(devices: Devices, library_names: frozenset[str]) -> list[Row]:
    """Every process that is on a device, or has one of the libraries mapped; this program is none."""
    rows = []
    for pid in list_processes():
        if pid == os.getpid():
            continue
        libraries = tuple(
            os.path.basename(each.path)
            for each in distinct_files(executable_mappings(pid))
            if library_name_of(each.path) in library_names
        )
        uses = devices.uses.get(pid, ())
        facts = describe(pid) if libraries or uses else None
        if facts is not None:
            rows.append(row_of(facts, uses, libraries))
    return rows


def row_of(facts: ProcessFacts, uses: tuple[Use, ...], libraries: tuple[str, ...]) -> Row:
    """A process, as it is reported."""
    return Row(
        pid=facts.tgid,
        name=guess_service_name(facts),
        command=facts.command,
        executable=facts.executable,
        container_id=facts.container_id,
        container_name=facts.container_name,
        pod_uid=facts.pod_uid,
        uses=uses,
        libraries=libraries,
    )


def write_table(rows: Sequence[Row], note: str, console: Console) -> None:
    """A row a process, under it the command that profiles it."""
    if rows:
        cells = [_TITLES, *([printable(cell) for cell in _cells(row)] for row in rows)]
        *others, longest = (max(map(cell_len, column)) for column in zip(*cells, strict=True))
        # The command gives way, however long it is: Rich would take of all columns alike.
        room = max(console.width - sum(others) - _BETWEEN * len(_TITLES), _LEAST)
        table = Table(box=None, padding=(0, _BETWEEN, 0, 0))
        for title, width in zip(_TITLES, (*others, min(longest, room)), strict=True):
            justify: JustifyMethod = "right" if title in ("PID", "memory") else "left"
            table.add_column(title, justify=justify, overflow="ellipsis", no_wrap=True, width=width)
        for row in cells[1:]:
            table.add_row(*map(Text, row))
        console.print(table)
        console.print("To profile:" if len(rows) == 1 else "To profile one of them:")
        for each in rows:
            console.print(f"  {each.profile}", soft_wrap=True)
    else:
        console.print("no process uses a GPU, or has a library of CUDA, NCCL or libibverbs mapped")
    if note:
        console.print(f"devices and memory are not known: {note}", soft_wrap=True)


def _cells(row: Row) -> tuple[str, ...]:
    known = [use.memory_bytes for use in row.uses if use.memory_bytes is not None]
    return (
        f"{row.pid}",
        ", ".join(use.label() for use in row.uses) or "-",
        size(sum(known)) if known else "-",
        row.container_name or row.container_id[:12] or "-",
        row.pod_uid or "-",
        " ".join(row.command) or row.name,
    )


@click.command(cls=HeadedCommand)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def ps(as_json: bool) -> None:
    """List processes that use GPUs: device, memory, container, pod, and the command that profiles each.

    Where the driver does not answer, those that have a library of CUDA, NCCL or libibverbs mapped. Changes nothing and
    needs no root for one's own processes.

    \b
    Examples:
      otelgpu ps
      otelgpu ps --json | jq -r '.processes[].profile'
    """
    devices = ask_driver()
    rows = find_rows(devices, vendor_libraries())
    if as_json:
        click.echo(json.dumps({"note": devices.note, "processes": [row.shown() for row in rows]}, indent=2))
        return
    width = None if sys.stdout.isatty() else _WIDE
    write_table(rows, devices.note, Console(markup=False, emoji=False, highlight=False, width=width))
