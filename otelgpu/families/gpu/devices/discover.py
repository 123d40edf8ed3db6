"""Which GPU a process means by CUDA ordinal 0, 1, …: what it may see, and how CUDA counts that.

In: two variables of its environment (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER) and the names of the device
files in its ``/dev``; the host's devices. Out: uuids by ordinal, "" for what cannot be known:

* a process that sets the variables itself, before its first CUDA call, looks as if it had not set them; what
  the driver reports of the devices that it is on (:func:`confirmed`) finds most such cases out;
* unless reported otherwise, CUDA counts the fastest GPU first, by a rule that is not published.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; CUDA on MIG in the MIG User Guide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence, Set
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from otelgpu.model.devices import DeviceGone, DeviceInput, DeviceReadings, DeviceSeen, ProcessDevices
from otelgpu.processes.reader.door import open_folder

_PROC: Final = Path("/proc")
_MAX_ENVIRON_BYTES: Final = 4 << 20
_DEVICE_FILE: Final = re.compile(r"nvidia([0-9]{1,4})")
_ORDINAL: Final = re.compile(r"[0-9]{1,4}")
_MAX_ENTRIES: Final = 1024
_MAX_DEVICE_FILES: Final = 65_536  # a process may have put anything into its /dev


class Visibility(Struct, frozen=True, kw_only=True):
    """What decides which devices a process sees.

    ``minors``: of its ``/dev/nvidia<minor>`` files, None when unknown. ``selection`` and ``order``: the two
    variables, None when not set.
    """

    minors: frozenset[int] | None
    selection: str | None
    order: str | None


def describe_devices(
    tgid: int,
    devices: Sequence[DeviceSeen],
    now_ns: int,
    *,
    used: Collection[str] | None = None,
    proc: Path = _PROC,
) -> ProcessDevices | None:
    """The devices of a process, None when nothing is known of them.

    ``used``: those that the driver finds it on; None when it does not report, or not yet.
    """
    visibility = read_visibility(tgid, proc=proc)
    uuids = () if visibility is None else ordinals(devices, visibility)
    if used is not None:
        uuids = confirmed(uuids, used)
    return ProcessDevices(tgid=tgid, time_ns=now_ns, uuids=uuids) if any(uuids) else None


def read_visibility(tgid: int, *, proc: Path = _PROC) -> Visibility | None:
    """As ``/proc`` reports of a process; None when its environment may not be read or it is gone."""
    folder = proc / str(tgid)
    try:
        with (folder / "environ").open("rb") as file:
            environ = file.read(_MAX_ENVIRON_BYTES)
    except OSError:
        return None
    variables = dict(part.partition(b"=")[::2] for part in environ.split(b"\0"))
    try:
        minors = frozenset(_minors_in(folder / "root"))
    except OSError:
        minors = frozenset()
    return Visibility(
        minors=minors or None,  # without one it would see none, or the files are elsewhere (WSL)
        selection=_variable(variables.get(b"CUDA_VISIBLE_DEVICES")),
        order=_variable(variables.get(b"CUDA_DEVICE_ORDER")),
    )


def _minors_in(root: Path) -> Iterator[int]:
    with ExitStack() as opened:
        below = open_folder(str(root))
        opened.callback(os.close, below)
        devices = os.open("dev", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=below)
        opened.callback(os.close, devices)
        for entry in islice(os.scandir(devices), _MAX_DEVICE_FILES):
            if match := _DEVICE_FILE.fullmatch(entry.name):
                yield int(match[1])


def _variable(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def ordinals(devices: Sequence[DeviceSeen], visibility: Visibility) -> tuple[str, ...]:
    """Uuid by CUDA ordinal, "" where it is unknown; () when even their number is."""
    if visibility.minors is None:
        return ()
    gpus = sorted(
        (device for device in devices if not device.parent and device.minor in visibility.minors),
        key=lambda gpu: gpu.pci_bus_id.lower(),
    )
    partitions = {gpu.uuid: [d.uuid for d in devices if d.parent == gpu.uuid] for gpu in gpus}
    if visibility.selection is None:
        return _counted(gpus, visibility.order)
    chosen: list[str] = []
    for entry in visibility.selection.split(",")[:_MAX_ENTRIES]:
        uuid = _chosen(entry.strip(), gpus, partitions, visibility.order)
        if uuid is None:
            break  # CUDA sees what comes before an entry that is not valid
        if uuid and uuid in chosen:
            return ()  # CUDA refuses the whole list
        chosen.append(uuid)
    return tuple(chosen)


def _chosen(
    entry: str, gpus: Sequence[DeviceSeen], partitions: dict[str, list[str]], order: str | None
) -> str | None:
    """The uuid that an entry of CUDA_VISIBLE_DEVICES stands for; "" when unknown, None when not valid."""
    if _ORDINAL.fullmatch(entry):
        counted = _counted(gpus, order)
        number = int(entry)
        return counted[number] if number < len(counted) else None
    if entry.startswith("MIG-GPU-"):
        return ""  # by instance numbers, of drivers before 470
    if entry.startswith("MIG-"):
        found = [uuid for uuids in partitions.values() for uuid in uuids if uuid.startswith(entry)]
    elif entry.startswith("GPU-") and len(entry) > len("GPU-"):
        found = [gpu.uuid for gpu in gpus if gpu.uuid.startswith(entry)]
        if len(found) == 1 and next(gpu.mig for gpu in gpus if gpu.uuid == found[0]):
            return ""  # one of its MIG devices
    else:
        return None
    return found[0] if len(found) == 1 else None


def _counted(gpus: Sequence[DeviceSeen], order: str | None) -> tuple[str, ...]:
    """``gpus``, which are in order of their PCI bus ids, in the order in which CUDA counts them."""
    if any(gpu.mig for gpu in gpus):
        return ("",) * len(gpus)  # CUDA takes one MIG device, or none, of those
    alike = len({gpu.model for gpu in gpus}) <= 1 and all(gpu.model for gpu in gpus)
    if order == "PCI_BUS_ID" or len(gpus) == 1 or alike:
        return tuple(gpu.uuid for gpu in gpus)
    return ("",) * len(gpus)


def confirmed(uuids: Sequence[str], used: Collection[str]) -> tuple[str, ...]:
    """Of a process' ordinals, those that ``used``, the devices the driver finds it on, does not contradict."""
    return tuple(uuid if uuid in used else "" for uuid in uuids)


class DeviceFollower:
    """Keeps up which devices each process means: said when a process appears, and again when it changes."""

    def __init__(self, *, proc: Path = _PROC) -> None:
        self._proc = proc
        self._devices: dict[str, DeviceSeen] = {}
        self._used: dict[int, set[str]] = {}
        self._reported: dict[int, tuple[str, ...]] = {}  # () where nothing is known
        self._changed = False

    def take(self, items: Sequence[DeviceInput]) -> None:
        """What was learnt of the devices."""
        for item in items:
            if isinstance(item, DeviceSeen):
                self._devices[item.uuid] = item
            elif isinstance(item, DeviceGone):
                self._devices.pop(item.uuid, None)
            elif isinstance(item, DeviceReadings):
                for process in item.processes:
                    self._used.setdefault(process.tgid, set()).add(process.device)
            self._changed = True

    def follow(self, tgids: Set[int], now_ns: int) -> list[ProcessDevices]:
        """What is new of the processes in ``tgids``; the others are forgotten."""
        for gone in self._reported.keys() - tgids:
            del self._reported[gone]
        wanted = tgids if self._changed else tgids - self._reported.keys()
        self._changed = False
        if not self._devices:
            return []
        self._used = {tgid: used for tgid, used in self._used.items() if tgid in tgids}
        found = []
        for tgid in wanted:
            reported = describe_devices(
                tgid, [*self._devices.values()], now_ns, used=self._used.get(tgid), proc=self._proc
            )
            uuids = () if reported is None else reported.uuids
            if reported is not None and uuids != self._reported.get(tgid):
                found.append(reported)
            self._reported[tgid] = uuids
        return found
