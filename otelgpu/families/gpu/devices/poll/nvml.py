"""One open NVML: which GPUs there are, and what they read now.

In: the driver, through ``libnvidia-ml.so.1`` and its binding nvidia-ml-py. Out: :mod:`otelgpu.model.devices`.
A quantity that a GPU does not have is absent, and not asked for again while the library stays open; one that
could not be read is absent and counted. Every call may block for as long as the driver likes: see
:mod:`otelgpu.families.gpu.devices.poll.poller`. Reference: nvml.h; docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.errors import OtelgpuError
from otelgpu.families.gpu.devices.poll.gpm import Gpm
from otelgpu.families.gpu.devices.poll.questions import (
    ALL_LINKS,
    CALLS,
    FIELDS,
    MEMBERS,
    OF_LINKS,
    OF_MIG,
    POWER,
    WIDE,
    WIDE_TYPES,
    Call,
    Handle,
)
from otelgpu.kernel.pci_devices import location_of, sysfs_address
from otelgpu.kernel.shared_library import can_be_loaded
from otelgpu.model.devices import NO_INDEX, DeviceReadings, DeviceSeen, EnergyRead, ProcessReading, Quantity
from otelgpu.model.losses import Reasons

DEVICES: Final = 64
"""GPUs, and MIG devices of one GPU, that are looked at; more are counted."""

NVLINKS: Final = 36
"""NVLinks of one GPU that are asked after; the most that one has in 2026 are 18."""

SWITCH: Final = "switch"
"""The peer of NVLinks that lead to an NVSwitch."""
UNKNOWN_PEER: Final = "unknown"

PROCESSES: Final = 4096
"""Processes on one GPU that are reported; more are counted."""

REASONS: Final = Reasons(
    "devices",
    {
        "binding_missing": "the Python package nvidia-ml-py is not installed; no GPU is read",
        "library_missing": "there is no libnvidia-ml.so.1: no NVIDIA driver, or a container without its `utility` part",
        "driver_not_loaded": "the NVIDIA kernel driver is not loaded; tried again every minute, and when a process "
        "comes that uses a GPU",
        "driver_changed": "the driver was replaced while its library was in use; restart otelgpu",
        "no_permission": "the driver refuses to answer; of one quantity: it is left out",
        "unavailable": "the driver's library answers with another error, which the log names; tried again every minute",
        "device_lost": "a GPU fell off the bus or must be reset; looked for again every minute",
        "device_unreadable": "a GPU that does not say who it is; it is left out",
        "devices_ignored": f"a GPU or MIG device beyond the {DEVICES} that are read",
        "read_failed": "a quantity that the GPU has but could not read this time",
        "implausible": "a reading that cannot be true (a utilisation above 100 %, a count that leaps), left out",
        "energy_unreadable": "a GPU that reports neither the energy it used nor its power: no request is charged "
        "anything for it",
        "processes_ignored": f"a process beyond the {PROCESSES} that are reported of a GPU",
        "foreign_pid_namespace": "otelgpu is not in the host's PID namespace, so that the driver's process ids say "
        "nothing: no metrics per process (Kubernetes: hostPID)",
        "poll_stuck": "the driver has not answered for a minute; what the GPUs read is not reported until it does",
        "readings_dropped": "readings that nobody collected in time",
    },
    unavailable=(
        "binding_missing",
        "library_missing",
        "driver_not_loaded",
        "no_permission",
        "foreign_pid_namespace",
    ),
)
"""What one count of (``devices``, reason) means."""

_REMOTE_SWITCH: Final = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_LIBRARY: Final = "libnvidia-ml.so.1"
_LARGEST: Final = 1 << 62  # the driver writes 2^64 - 1, and 2^63 - 1, for "not available"
_MOST: Final = {"_percent": 100, "_ppm": 1_000_000}
_NO_INSTANCE: Final = 0xFFFFFFFF  # nvmlProcessInfo_t: not on a MIG device
# Facts on processes that a device may lack, as it may lack a quantity.
_ENERGY: Final = "energy"
_GPM: Final = "gpm"
_PROCESSES: Final = "processes"
_PROCESS_UTILIZATION: Final = "process_utilization"


class UnavailableError(OtelgpuError):
    """NVML cannot be used; ``reason`` is one of :data:`REASONS`."""

    def __init__(self, reason: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.reason = reason


class LostError(OtelgpuError):
    """Device ``uuid`` does not answer any more; the others may."""

    def __init__(self, uuid: str) -> None:
        super().__init__(f"GPU {uuid} is lost")
        self.uuid = uuid


class _Device(Struct):
    handle: Handle
    seen: DeviceSeen
    instance: tuple[int, int] = (_NO_INSTANCE, _NO_INSTANCE)  # of a MIG device: GPU and compute instance
    lacking_fields: set[str] = field(default_factory=set)  # not to be asked for again
    lacking: set[str] = field(default_factory=set)  # the same of functions
    utilization_since: int = 0  # time stamp of the newest sample seen; 0: all that the driver keeps


class Nvml:
    """Open from construction, which raises :class:`UnavailableError`, to :meth:`close`. For one thread."""

    def __init__(
        self, counters: Counter[str], *, own_pid_namespace: bool, pci: Path = Path("/sys/bus/pci/devices")
    ) -> None:
        """``own_pid_namespace``: the driver's process ids mean nothing here, so that none are reported."""
        self._pci = pci
        self._counters = counters
        self._reports_processes = not own_pid_namespace
        self._nvml = _binding()
        self._devices: dict[str, _Device] = {}
        self._gpm = Gpm(self._nvml)
        self.lost = 0  # GPUs that list_devices found and that do not answer
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        """Let the driver go."""
        self._gpm.close()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # it let go of us

    def list_devices(self, now_ns: int) -> list[DeviceSeen]:
        """All GPUs, each followed by its MIG devices. Raises :class:`UnavailableError`."""
        nvml = self._nvml
        before, self._devices = self._devices, {}
        self.lost = 0
        try:
            count = nvml.nvmlDeviceGetCount()
            driver = nvml.nvmlSystemGetDriverVersion()
        except (nvml.NVMLError, UnicodeDecodeError) as error:
            raise self._unavailable(error) from error
        self._counters["devices_ignored"] += max(count - DEVICES, 0)
        for index in range(min(count, DEVICES)):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpu = self._describe(handle, index, driver, now_ns)
            except (nvml.NVMLError, UnicodeDecodeError) as error:
                if self._is_fatal(error):
                    raise self._unavailable(error) from error
                if self._is_lost(error):
                    self.lost += 1
                else:
                    self._counters["device_unreadable"] += 1
                continue
            self._devices[gpu.seen.uuid] = gpu
            if gpu.seen.mig:
                self._list_mig(gpu)
        self._place_all()
        for uuid, device in self._devices.items():
            if uuid in before:
                device.utilization_since = before[uuid].utilization_since
        self._gpm.keep(self._devices.keys())
        return [device.seen for device in self._devices.values()]

    def _describe(self, handle: Handle, index: int, driver: str, now_ns: int) -> _Device:
        nvml = self._nvml
        seen = DeviceSeen(
            time_ns=now_ns,
            uuid=nvml.nvmlDeviceGetUUID(handle),
            index=index,
            minor=self._or(NO_INDEX, nvml.nvmlDeviceGetMinorNumber, handle),
            model=self._or("", nvml.nvmlDeviceGetName, handle),
            pci_bus_id=self._or("", lambda h: nvml.nvmlDeviceGetPciInfo(h).busId, handle),
            mig=self._or([0], nvml.nvmlDeviceGetMigMode, handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE,
            driver_version=driver,
            firmware_version=self._or("", nvml.nvmlDeviceGetVbiosVersion, handle),
            serial_number=self._or("", nvml.nvmlDeviceGetSerial, handle),
        )
        return _Device(handle, seen)

    def _place_all(self) -> None:
        """Where each GPU is on its PCIe bus, and what its NVLinks lead to."""
        uuids = {
            address: uuid
            for uuid, device in self._devices.items()
            if (address := sysfs_address(device.seen.pci_bus_id))
        }
        for address, uuid in uuids.items():
            device, where = self._devices[uuid], location_of(address, self._pci)
            links = self._nvlinks(device.handle, uuids)
            device.seen = replace(device.seen, pci_path=where.path, numa_node=where.numa_node, nvlinks=links)

    def _nvlinks(self, handle: Handle, uuids: Mapping[str, str]) -> dict[str, int]:
        """Peer → active links. ``uuids``: GPUs by their PCI addresses. A link that cannot be asked ends the list."""
        nvml, found = self._nvml, Counter[str]()
        try:
            for link in range(NVLINKS):
                if nvml.nvmlDeviceGetNvLinkState(handle, link) != nvml.NVML_FEATURE_ENABLED:
                    continue
                if nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _REMOTE_SWITCH:
                    found[SWITCH] += 1
                else:
                    address = sysfs_address(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
                    found[uuids.get(address, address) or UNKNOWN_PEER] += 1
        except (nvml.NVMLError, UnicodeDecodeError) as error:
            if self._is_lost(error):
                return {}  # which its next reading finds
        return dict(found)

    def _list_mig(self, gpu: _Device) -> None:
        nvml = self._nvml
        for slot in range(min(self._or(0, nvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle), DEVICES)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, slot)
                uuid = nvml.nvmlDeviceGetUUID(handle)
            except nvml.NVMLError_NotFound:
                continue  # an empty slot
            except (nvml.NVMLError, UnicodeDecodeError):
                self._counters["device_unreadable"] += 1
                continue
            seen = DeviceSeen(
                time_ns=gpu.seen.time_ns,
                uuid=uuid,
                index=NO_INDEX,
                minor=NO_INDEX,
                model=self._or("", nvml.nvmlDeviceGetName, handle),
                parent=gpu.seen.uuid,
                driver_version=gpu.seen.driver_version,
            )
            instance = (
                self._or(_NO_INSTANCE, nvml.nvmlDeviceGetGpuInstanceId, handle),
                self._or(_NO_INSTANCE, nvml.nvmlDeviceGetComputeInstanceId, handle),
            )
            self._devices[uuid] = _Device(handle, seen, instance)

    def read(self, uuid: str, now_ns: int) -> DeviceReadings:
        """What a device of :meth:`list_devices` reads.

        Raises :class:`LostError` when this one is gone, :class:`UnavailableError` when all are.
        """
        device = self._devices[uuid]
        values: dict[Quantity, int] = {}
        if device.seen.parent:
            for call in OF_MIG:
                self._ask(device, call, values)
            self._ask_gpm(device, values, now_ns)
            return DeviceReadings(time_ns=now_ns, uuid=uuid, values=values)
        self._ask_fields(device, values)
        for call in CALLS:
            if call.instead_of is None or call.instead_of in device.lacking_fields:
                self._ask(device, call, values)
        self._ask_gpm(device, values, now_ns)
        processes = self._processes(device) if self._reports_processes else ()
        return DeviceReadings(time_ns=now_ns, uuid=uuid, values=values, processes=processes)

    def energy(self, uuid: str, clock_ns: Callable[[], int]) -> EnergyRead | None:
        """What a GPU of :meth:`list_devices` has used by now, in one call of the driver; None: it does not report.

        Raises as :meth:`read` does.
        """
        device = self._devices[uuid]
        values: dict[Quantity, int] = {}
        for quantity in (Quantity.ENERGY_MILLIJOULES, Quantity.POWER_MILLIWATTS):
            if not values:
                self._ask_fields(device, values, (quantity,))
        if not values and Quantity.POWER_MILLIWATTS in device.lacking_fields:
            self._ask(device, POWER, values)
            if not device.lacking.isdisjoint(POWER.quantities):
                self._counters["energy_unreadable"] += _ENERGY not in device.lacking
                device.lacking.add(_ENERGY)
        if not values:
            return None
        return EnergyRead(
            time_ns=clock_ns(),
            uuid=uuid,
            millijoules=values.get(Quantity.ENERGY_MILLIJOULES),
            milliwatts=values.get(Quantity.POWER_MILLIWATTS),
        )

    def _ask(self, device: _Device, call: Call, values: dict[Quantity, int]) -> None:
        if not device.lacking.isdisjoint(call.quantities):
            return
        try:
            answers = call.ask(self._nvml, device.handle)
        except self._nvml.NVMLError as error:
            device.lacking |= self._lacking(device, call.quantities, error)
            return
        for quantity, value in zip(call.quantities, answers, strict=True):
            self._keep(values, quantity, value)

    def _ask_fields(
        self, device: _Device, values: dict[Quantity, int], quantities: Iterable[Quantity] = FIELDS
    ) -> None:
        nvml = self._nvml
        wanted = [quantity for quantity in quantities if quantity not in device.lacking_fields]
        if not wanted:
            return
        fields = [
            (getattr(nvml, FIELDS[quantity]), ALL_LINKS if quantity in OF_LINKS else 0) for quantity in wanted
        ]
        try:
            answers = nvml.nvmlDeviceGetFieldValues(device.handle, fields)
        except nvml.NVMLError as error:
            device.lacking_fields |= self._lacking(device, wanted, error)
            return
        for quantity, answer in zip(wanted, answers, strict=True):
            if answer.nvmlReturn != nvml.NVML_SUCCESS:
                failure = nvml.NVMLError(answer.nvmlReturn)
                device.lacking_fields |= self._lacking(device, (quantity,), failure)
            elif answer.valueType not in MEMBERS or (quantity in WIDE and answer.valueType not in WIDE_TYPES):
                device.lacking_fields.add(quantity)
            else:
                self._keep(values, quantity, int(getattr(answer.value, MEMBERS[answer.valueType])))

    def _ask_gpm(self, device: _Device, values: dict[Quantity, int], now_ns: int) -> None:
        """Of a GPU that is divided (MIG) nothing, but of its parts: of those that have a GPU instance to themselves."""
        if _GPM in device.lacking or device.seen.mig:
            return
        gpu, instance = device, None
        if device.seen.parent:
            gpu, instance = self._devices[device.seen.parent], device.instance[0]
            if instance == _NO_INSTANCE or self._shares_instance(device):
                return
        try:
            answers = self._gpm.read(device.seen.uuid, gpu.handle, now_ns, instance=instance)
        except self._nvml.NVMLError as error:
            device.lacking |= self._lacking(device, (_GPM,), error)
            return
        for quantity, value in answers.items():
            self._keep(values, quantity, value)

    def _shares_instance(self, device: _Device) -> bool:
        """Whether another MIG device is in the same GPU instance, which is what the driver counts."""
        return any(
            other is not device
            and other.seen.parent == device.seen.parent
            and other.instance[0] == device.instance[0]
            for other in self._devices.values()
        )

    def _keep(self, values: dict[Quantity, int], quantity: Quantity, value: int) -> None:
        most = next((most for unit, most in _MOST.items() if quantity.endswith(unit)), _LARGEST - 1)
        if not 0 <= value <= most:
            self._counters["implausible"] += 1
        else:
            values[quantity] = value

    def _lacking(self, device: _Device, asked: Iterable[str], error: Exception) -> set[str]:
        """A question failed: all of ``asked`` if for good, else nothing. Raises if nobody is there to answer."""
        if self._is_lost(error):
            raise LostError(device.seen.uuid) from error
        if self._is_fatal(error):
            raise self._unavailable(error) from error
        if isinstance(error, self._nvml.NVMLError_NoPermission):
            self._counters["no_permission"] += 1
        elif not self._is_lacking(error):
            self._counters["read_failed"] += 1
            return set()
        return set(asked)

    # -- processes ----------------------------------------------------------------------------------------

    def _processes(self, device: _Device) -> tuple[ProcessReading, ...]:
        memory = self._process_memory(device)
        if memory is None:
            return ()
        self._counters["processes_ignored"] += max(len(memory) - PROCESSES, 0)
        samples = self._process_samples(device)
        found = []
        for (tgid, uuid), size in list(memory.items())[:PROCESSES]:
            # The driver leaves out who was idle; it knows nothing by MIG device.
            sm, encoder, decoder = (None,) * 3 if samples is None else samples.get(tgid, (0, 0, 0))
            found.append(
                ProcessReading(
                    tgid=tgid,
                    device=uuid,
                    memory_bytes=size,
                    utilization_percent=sm,
                    encoder_percent=encoder,
                    decoder_percent=decoder,
                )
            )
        return tuple(found)

    def _process_memory(self, device: _Device) -> dict[tuple[int, str], int | None] | None:
        """(tgid, uuid) → bytes, None where the driver does not report; None when it says nothing of processes."""
        if _PROCESSES in device.lacking:
            return None
        nvml = self._nvml
        try:
            processes = nvml.nvmlDeviceGetComputeRunningProcesses_v3(device.handle)
        except nvml.NVMLError as error:
            device.lacking |= self._lacking(device, (_PROCESSES,), error)
            return None
        instances = {
            other.instance: uuid
            for uuid, other in self._devices.items()
            if other.seen.parent == device.seen.uuid
        }
        return {
            (process.pid, instances.get(_instance(process), device.seen.uuid)): process.usedGpuMemory
            for process in processes
        }

    def _process_samples(self, device: _Device) -> dict[int, tuple[int, int, int]] | None:
        """Tgid → utilisation in percent since the last reading, the newest sample of each."""
        if _PROCESS_UTILIZATION in device.lacking:
            return None
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(device.handle, device.utilization_since)
        except nvml.NVMLError as error:
            # The binding raises an error of value 0 when there are no samples.
            if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                return {}
            device.lacking |= self._lacking(device, (_PROCESS_UTILIZATION,), error)
            return None
        found: dict[int, tuple[int, int, int]] = {}
        for sample in sorted(samples, key=lambda sample: int(sample.timeStamp)):
            percents = sample.smUtil, sample.encUtil, sample.decUtil
            if max(percents) > 100:
                self._counters["implausible"] += 1
                continue
            found[sample.pid] = percents
            device.utilization_since = max(device.utilization_since, sample.timeStamp)
        return found

    # -- errors -------------------------------------------------------------------------------------------

    def _or(self, default: Any, ask: Callable[[Handle], Any], handle: Handle) -> Any:
        """What ``ask`` answers, or ``default`` when it does not, which leaves the fact out."""
        try:
            return ask(handle)
        except UnicodeDecodeError:
            return default
        except self._nvml.NVMLError as error:
            if self._is_lost(error):
                raise
            return default

    def _is_lost(self, error: Exception) -> bool:
        nvml = self._nvml
        return isinstance(error, nvml.NVMLError_GpuIsLost | nvml.NVMLError_ResetRequired)

    def _is_lacking(self, error: Exception) -> bool:
        nvml = self._nvml
        return isinstance(
            error,
            nvml.NVMLError_NotSupported
            | nvml.NVMLError_FunctionNotFound
            | nvml.NVMLError_InvalidArgument  # a field that this driver does not know yet
            | nvml.NVMLError_Deprecated,
        )

    def _is_fatal(self, error: Exception) -> bool:
        nvml = self._nvml
        return isinstance(
            error,
            nvml.NVMLError_Uninitialized
            | nvml.NVMLError_DriverNotLoaded
            | nvml.NVMLError_LibRmVersionMismatch,
        )

    def _unavailable(self, error: Exception) -> UnavailableError:
        nvml = self._nvml
        if isinstance(error, nvml.NVMLError_LibraryNotFound):
            return _library_missing()
        if isinstance(error, nvml.NVMLError_DriverNotLoaded):
            return UnavailableError("driver_not_loaded", "the NVIDIA driver is not loaded", "modprobe nvidia")
        if isinstance(error, nvml.NVMLError_LibRmVersionMismatch):
            return UnavailableError(
                "driver_changed", "the NVIDIA driver and its library differ in version", "restart otelgpu"
            )
        if isinstance(error, nvml.NVMLError_NoPermission):
            return UnavailableError(
                "no_permission", "no permission to ask the NVIDIA driver", "give access to /dev/nvidiactl"
            )
        return UnavailableError("unavailable", f"the NVIDIA driver's library fails: {error}")


def _instance(process: Any) -> tuple[int, int]:
    return process.gpuInstanceId, process.computeInstanceId


def _binding() -> ModuleType:
    """Raises :class:`UnavailableError`; where there is nothing to bind, too, for the binding takes 3.6 MiB."""
    if find_spec("pynvml") is None:  # an optional part of the installation
        raise UnavailableError(
            "binding_missing", "nvidia-ml-py is not installed", "pip install 'otelgpu[gpu]'"
        )
    if not can_be_loaded(_LIBRARY):
        raise _library_missing()
    return import_module("pynvml")


def _library_missing() -> UnavailableError:
    return UnavailableError(
        "library_missing",
        f"no {_LIBRARY}",
        "install the NVIDIA driver; in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )
