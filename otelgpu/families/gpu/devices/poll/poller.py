"""GPU facts at a slow pace, from a thread of its own: a driver that hangs must not hold up the agent.

In: :class:`~otelgpu.families.gpu.devices.poll.nvml.Nvml`. Out: :mod:`otelgpu.model.devices`, in order of time.
:class:`DeviceWatch` knows what was reported and what is to be tried again when, and takes time as an argument;
:class:`DevicePoller` is its thread.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from otelgpu.families.gpu.devices.poll.energy import Pace, SampledWatch
from otelgpu.families.gpu.devices.poll.nvml import REASONS, LostError, Nvml, UnavailableError
from otelgpu.kernel import clock
from otelgpu.model.devices import DeviceGone, DeviceInput, DeviceReadings, DeviceSeen, EnergyRead
from otelgpu.processes.polling import Look, Polled

_log = logging.getLogger("otelgpu.devices")

INTERVAL_S: Final = 10.0
"""NVML's utilisation is that of the last second or less; reading a GPU takes milliseconds."""

RETRY_NS: Final = 60_000_000_000
"""Between two attempts to open NVML, and between two looks at which devices there are."""

SOON_NS: Final = 5_000_000_000
"""Between two attempts where processes come that use a GPU, and none can be read: a driver may load just then."""

READY: Final = 4096  # inputs that wait to be collected: a quarter of an hour of 64 GPUs that nobody collects

_HOST_PID_NAMESPACE: Final = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h
_QUIET: Final = ("binding_missing", "library_missing")  # as on every machine without a GPU


def in_own_pid_namespace() -> bool:
    """Whether this program does not see the host's process ids, or cannot report."""
    try:
        return os.readlink("/proc/self/ns/pid") != _HOST_PID_NAMESPACE
    except OSError:
        return True


def why_unavailable() -> str | None:
    """What keeps GPUs from being read here, and what to do; None when nothing does. Asks the driver, and waits."""
    try:
        nvml = Nvml(Counter(), own_pid_namespace=True)
    except UnavailableError as error:
        return str(error)
    try:
        return None if nvml.list_devices(0) else "the NVIDIA driver knows no GPU"
    except UnavailableError as error:
        return str(error)
    finally:
        nvml.close()


def look() -> Look:
    """All devices, and what each of them reads, once."""
    foreign = in_own_pid_namespace()
    try:
        nvml = Nvml(Counter(), own_pid_namespace=foreign)
    except UnavailableError as error:
        return Look(note=REASONS.get(error.reason, error.message))
    try:
        now_ns = clock.monotonic_ns()
        devices = nvml.list_devices(now_ns)
        inputs: list[DeviceInput] = [*devices]
        for device in devices:
            with suppress(LostError):  # the others may answer
                inputs.append(nvml.read(device.uuid, now_ns))
    except UnavailableError as error:
        return Look(note=REASONS.get(error.reason, error.message))
    finally:
        nvml.close()
    return Look(inputs=inputs, note=REASONS["foreign_pid_namespace"] if foreign else "")


class DeviceWatch:
    """What is known of the devices. Every call of :meth:`poll` asks the driver and may block."""

    def __init__(self, open_nvml: Callable[[Counter[str]], Nvml] | None = None) -> None:
        """``open_nvml`` opens NVML, given the counters that it is to use."""
        self.counters: Counter[str] = Counter()
        self._open = open_nvml or self._open_here
        self._nvml: Nvml | None = None
        self._known: dict[str, DeviceSeen] = {}
        self._lost: set[str] = set()
        self._unnamed = 0  # GPUs that were lost before they reported their uuid
        self._reason = ""  # why NVML could not be used the last time
        self._look_ns = 0  # when to look again at what there is
        self._looked_ns = -SOON_NS
        self._is_wanted = False  # a process has come that uses a GPU

    @property
    def is_blind(self) -> bool:
        """Whether no device is known."""
        return not self._known

    def want(self) -> None:
        """A process has come that uses a GPU, said from any thread: while blind, look again soon."""
        self._is_wanted = True

    def poll(self, now_ns: int) -> list[DeviceInput]:
        """Everything as of now."""
        soon = self._is_wanted and self.is_blind and now_ns >= self._looked_ns + SOON_NS
        looks = soon or now_ns >= self._look_ns
        if looks:
            self._is_wanted, self._looked_ns = False, now_ns
        if self._nvml is None and not looks:
            return []
        try:
            found = self._look(now_ns) if looks else []
            return found + self._read(now_ns, retry=looks)
        except UnavailableError as error:
            self._note(error)
            self.close()
            self._look_ns = now_ns + RETRY_NS
            gone: list[DeviceInput] = [DeviceGone(time_ns=now_ns, uuid=uuid) for uuid in self._known]
            self._known.clear()
            self._lost.clear()
            self._unnamed = 0
            return gone

    def sample(self, clock_ns: Callable[[], int]) -> list[DeviceInput]:
        """What the GPUs have used by now, of those that answer; who is lost is found out by :meth:`poll`."""
        found: list[DeviceInput] = []
        for uuid, device in self._known.items():
            if self._nvml is None or device.parent or uuid in self._lost:
                continue
            with suppress(LostError, UnavailableError):
                read = self._nvml.energy(uuid, clock_ns)
                found += [read] if read is not None else []
        return found

    def close(self) -> None:
        """Let the driver go; the next :meth:`poll` opens it again when it is time."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _open_here(self, counters: Counter[str]) -> Nvml:
        foreign = in_own_pid_namespace()
        counters["foreign_pid_namespace"] += foreign
        return Nvml(counters, own_pid_namespace=foreign)

    def _look(self, now_ns: int) -> list[DeviceInput]:
        if self._lost or self._unnamed:
            self.close()  # a GPU that was reset answers under a new handle only
        if self._nvml is None:
            self._nvml = self._open(self.counters)
        seen = {device.uuid: device for device in self._nvml.list_devices(now_ns)}
        found: list[DeviceInput] = [
            DeviceGone(time_ns=now_ns, uuid=uuid)
            for uuid in self._known
            if uuid not in seen and uuid not in self._lost
        ]
        for uuid, device in seen.items():
            before = self._known.get(uuid)
            if before is None or replace(before, time_ns=now_ns) != device:
                found.append(device)
        self._known = seen
        if not self._nvml.lost:
            self._lost &= seen.keys()  # what is not there at all was taken out
        unnamed = max(self._nvml.lost - len(self._lost - seen.keys()), 0)
        self.counters["device_lost"] += max(unnamed - self._unnamed, 0)
        self._unnamed = unnamed
        self._reason = ""
        self._look_ns = now_ns + RETRY_NS
        return found

    def _read(self, now_ns: int, *, retry: bool) -> list[DeviceInput]:
        """``retry``: those that are lost, too. One that is lost is reported, and counted, once."""
        found: list[DeviceInput] = []
        assert self._nvml is not None
        for uuid in self._known:
            if uuid in self._lost and not retry:
                continue
            try:
                found.append(self._nvml.read(uuid, now_ns))
                self._lost.discard(uuid)
            except LostError as error:
                if uuid in self._lost:
                    continue
                _log.warning("%s; it is looked for again every minute", error)
                self.counters["device_lost"] += 1
                self._lost.add(uuid)
                found.append(DeviceGone(time_ns=now_ns, uuid=uuid, failed=True))
        return found

    def _note(self, error: UnavailableError) -> None:
        """Said and counted once, not once a minute."""
        if error.reason != self._reason:
            self._reason = error.reason
            self.counters[error.reason] += 1
            level = logging.INFO if error.reason in _QUIET else logging.WARNING
            _log.log(level, "no GPU is read: %s", error)


class DevicePoller:
    """Polls from :meth:`start` to :meth:`stop`; :meth:`collect` never waits for the driver."""

    def __init__(self, interval_s: float = INTERVAL_S, watch: DeviceWatch | None = None) -> None:
        self.interval_s = interval_s
        self._pace = Pace(lambda: self.interval_s)
        self._watch = watch or DeviceWatch()
        self._polled = Polled(
            SampledWatch(self._watch, self._pace),
            "otelgpu-devices",
            self._pace.wait,
            room=READY,
            readings=(DeviceReadings, EnergyRead),
        )
        # Of the collecting side alone:
        self._reported: set[str] = set()
        self._stuck = 0
        self._is_stuck = False

    @property
    def counters(self) -> dict[str, int]:
        """By reason, since the start: see :data:`otelgpu.families.gpu.devices.poll.nvml.REASONS`."""
        return dict(self._polled.counters + Counter(poll_stuck=self._stuck))

    def start(self) -> None:
        """Begin to poll, now and then every interval."""
        self._polled.thread.start()

    def stop(self, deadline_s: float = 1.0) -> None:
        """Read once more and end the thread; one that hangs in the driver is left to die with the process."""
        self._pace.stop()
        if self._polled.thread.is_alive():
            self._polled.thread.join(deadline_s)

    def hasten(self) -> None:
        """Somebody waits for what the GPUs use."""
        self._pace.hasten()

    def want(self) -> None:
        """A process has come that uses a GPU: where none could be read, try again."""
        if self._watch.is_blind:
            self._watch.want()
            self._pace.begin()

    def collect(self, now_ns: int) -> list[DeviceInput]:
        """What was learnt since the last call. ``now_ns``: CLOCK_MONOTONIC."""
        found, stuck = self._polled.take(), self._polled.is_stuck(now_ns)
        for item in found:
            if isinstance(item, DeviceReadings | DeviceSeen):
                self._reported.add(item.uuid)
            elif isinstance(item, DeviceGone):
                self._reported.discard(item.uuid)
        if stuck and not self._is_stuck:
            self._stuck += 1
            _log.warning("the NVIDIA driver has not answered for a minute")
            found += [DeviceGone(time_ns=now_ns, uuid=uuid) for uuid in sorted(self._reported)]
            self._reported.clear()
        self._is_stuck = stuck
        return found
