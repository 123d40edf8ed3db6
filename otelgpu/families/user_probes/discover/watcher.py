"""A user's probes in the observed processes and in the kernel: a watcher of family ``probe``.

In: the probes, processes as they begin and map files. Out: links, and what to read at each place in the map
``probes``. A file is looked at once, whoever maps it; a probe that finds no place is reported once, when its library
was there but lacks the function.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from otelgpu.elf.image import ElfError
from otelgpu.errors import OtelgpuError
from otelgpu.families.user_probes.discover.bcc_programs import BccProgram
from otelgpu.kernel.features import has_kprobes
from otelgpu.kernel.libbpf import BpfError, Link, Program, detach_all
from otelgpu.kernel.loader import LoadedFamily
from otelgpu.kernel.tracepoints import Field, fields_of
from otelgpu.model.inputs import Input
from otelgpu.model.losses import Reasons
from otelgpu.model.user_probes import (
    REGISTERS,
    Argument,
    ArgumentSource,
    Functions,
    Kprobe,
    Reading,
    Tracepoint,
    Usdt,
    UserProbe,
)
from otelgpu.processes.elf_files import ElfFile, Identity, identity_of, open_elf, open_mapping
from otelgpu.processes.maps import Mapping as MappedFile
from otelgpu.processes.maps import executable_mappings
from otelgpu.symbols.usdt import UsdtPlace, usdt_places

_log = logging.getLogger("otelgpu.discover")

REASONS: Final = Reasons(
    "probe",
    {
        "probe_places_full": "a place of a user's probe beyond the bound of all places; it is not probed",
        "probe_refused": "the kernel refused a user's probe at a place, which the log reports",
        "probe_file_unreadable": "a file that a user's probe is for could not be read",
        "probe_ring_full": "no room for a hit of a user's own program",
        "probe_argument_unsupported": "a USDT argument is kept where it cannot be read; it is missing from the hits",
    },
)
_FILES: Final = 4096
_RESULT: Final = "result"
_IN_REGISTERS: Final = 6  # arguments of a function; the others are on the stack
_STACK_POINTER: Final = REGISTERS.index("rsp")
_PROFILE: Final = "profile"
_INSIDE: Final = 1 << 16  # USER_INSIDE of bpf/profile/user.h


class UserProbes:
    """One session's, of family ``probe`` those that become spans or metrics, of ``profile`` those that are sampled.

    Raises :class:`OtelgpuError` where the kernel lacks what a probe is on, with its file and line.
    """

    def __init__(
        self,
        loaded: LoadedFamily,
        probes: Sequence[UserProbe],
        *,
        with_returns: bool,
        program: tuple[str, str] | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._with_returns = with_returns
        self._programs: dict[str, Program] = {program.name: program for program in loaded.programs}
        self._places: _Places
        if loaded.family == _PROFILE:
            self._probes = tuple(probe for probe in probes if probe.profile)
            self._entry, self._places = "user_sample", _Numbers()
        else:
            self._probes = tuple(probe for probe in probes if probe.span or probe.metric is not None)
            self._entry, self._places = "user_entry", _Table(loaded)
        self._files: dict[Identity, list[Link]] = {}
        self._kernel_links: list[Link] = []
        self._placed: set[int] = set()
        self._reported: set[int] = set()
        self._own: BccProgram | None = None
        self._own_places: dict[int, dict[int, tuple[str, str]]] = {}  # tgid → probe → path and symbol
        try:
            self._open_program(loaded, program)
            for probe in self._probes:
                self._place_in_kernel(probe)
        except BaseException:
            self.close()
            raise

    # -- as a watcher -----------------------------------------------------------------------------

    def mapped(self, tgid: int) -> None:
        """A process has mapped a file, or runs already: probe those that are wanted."""
        for mapping in executable_mappings(tgid):
            wanted = [probe for probe in self._probes if _is_in(probe, mapping.path)]
            if wanted:
                self._examine(tgid, mapping, wanted)
                self._run_own(tgid, mapping, wanted)

    def program_changed(self, tgid: int) -> None:
        """It is another program now."""
        self.forget(tgid)
        self.mapped(tgid)

    def prepare(self, path: Path) -> None:
        """A program is about to load this file."""
        wanted = [probe for probe in self._probes if _is_in(probe, str(path))]
        if wanted:
            with suppress(OSError, ElfError), open_elf(path) as file:
                self._place_in_file(file, str(path), wanted)

    @property
    def is_polled(self) -> bool:
        """The user's own program writes into a ring of its own, which wakes nobody."""
        return self._own is not None

    def collect(self, now_ns: int) -> Sequence[Input]:
        """Hits of the user's own program, which has a ring of its own."""
        if self._own is None:
            return ()
        self.counters["probe_ring_full"] = self._own.lost()
        return list(self._own.drain())

    def forget(self, tgid: int) -> None:
        """What a process had, others may have; but for the user's own program, which is in single processes."""
        for path, symbol in self._own_places.pop(tgid, {}).values():
            if self._own is not None:
                self._own.detach(tgid, path, symbol)

    def close(self) -> None:
        """Take everything off; idempotent."""
        detach_all([*self._kernel_links, *(link for links in self._files.values() for link in links)])
        self._kernel_links.clear()
        self._files.clear()
        self._own_places.clear()
        if self._own is not None:
            self._own.close()
            self._own = None

    @property
    def unplaced(self) -> list[UserProbe]:
        """Those that have found no place yet."""
        return [probe for probe in self._probes if probe.number not in self._placed]

    # -- files ------------------------------------------------------------------------------------

    def _examine(self, tgid: int, mapping: MappedFile, wanted: Sequence[UserProbe]) -> None:
        if identity_of(tgid, mapping) in self._files:
            return
        try:
            with open_mapping(tgid, mapping) as file:
                self._place_in_file(file, mapping.path, wanted)
        except ProcessLookupError:
            return
        except (OSError, ElfError) as error:
            self.counters["probe_file_unreadable"] += 1
            _log.debug("cannot probe %s: %s", mapping.path, error)

    def _place_in_file(self, file: ElfFile, path: str, wanted: Sequence[UserProbe]) -> None:
        if file.identity in self._files:
            return
        if (
            len(self._files) >= _FILES
        ):  # the oldest one's probes stay for as long as its links do: let them go
            detach_all(self._files.pop(next(iter(self._files))))
        links = self._files[file.identity] = []
        opened = f"/proc/self/fd/{file.descriptor}"
        functions = {p.target.symbol for p in wanted if isinstance(p.target, Functions)}
        offsets = file.image.function_offsets(functions) if functions else {}
        places = usdt_places(file.image) if any(isinstance(p.target, Usdt) for p in wanted) else []
        for probe in wanted:
            target = probe.target
            if probe.program:
                continue
            if isinstance(target, Functions) and target.symbol in offsets:
                links += self._place_at_function(probe, opened, offsets[target.symbol], go=file.image.is_go)
            elif isinstance(target, Usdt):
                links += self._place_at_usdts(probe, target, opened, places)
            if probe.number not in self._placed and probe.number not in self._reported:
                self._reported.add(probe.number)
                _log.warning("%s: %s has no %s", probe.place, path, _described(probe))

    def _place_at_function(self, probe: UserProbe, path: str, offset: int, *, go: bool) -> list[Link]:
        # Go moves its stacks, return addresses included: a return probe would crash it.
        returns = probe.returns and self._with_returns and not go
        readings = [_of_call(argument) for argument in probe.arguments]
        return self._attach(probe, readings, path, offset, returns=returns)

    def _place_at_usdts(
        self, probe: UserProbe, target: Usdt, path: str, places: Sequence[UsdtPlace]
    ) -> list[Link]:
        """At all that have its name; where it lasts until others, at these too, as ends of the first."""
        ends = [each for each in places if f"{each.provider}:{each.name}" == target.until]
        links: list[Link] = []
        if target.until and not ends:
            return links
        for place in places:
            if (place.provider, place.name) == (target.provider, target.name):
                links += self._place_at_usdt(probe, path, place, () if links else ends)
        return links

    def _place_at_usdt(
        self, probe: UserProbe, path: str, place: UsdtPlace, ends: Sequence[UsdtPlace]
    ) -> list[Link]:
        readings: list[Reading | None] = []
        for argument in probe.arguments:
            index = int(argument.where.removeprefix("arg")) - 1
            reading = place.arguments[index] if index < len(place.arguments) else None
            self.counters["probe_argument_unsupported"] += reading is None
            readings.append(reading)
        return self._attach(
            probe, readings, path, place.file_offset, semaphore=place.semaphore, inside=True, ends=ends
        )

    def _attach(
        self,
        probe: UserProbe,
        readings: Sequence[Reading | None],
        path: str,
        offset: int,
        *,
        returns: bool = False,
        semaphore: int = 0,
        inside: bool = False,
        ends: Sequence[UsdtPlace] = (),
    ) -> list[Link]:
        returns = returns and self._entry == "user_entry"
        ends = ends if self._entry == "user_entry" else ()
        lasts = returns or (isinstance(probe.target, Usdt) and bool(probe.target.until))
        place = self._report(probe, readings, returns=lasts, inside=inside)
        if place is None:
            return []
        links: list[Link] = []
        programs = [(self._entry, offset, semaphore)]
        if returns:
            programs.insert(0, ("user_return", offset, semaphore))  # none returns that was not entered
        programs = [("user_until", each.file_offset, each.semaphore) for each in ends] + programs
        for name, at, counts in programs:
            try:
                links += self._programs[name].attach_uprobes(
                    path, (at,), (place,), semaphores=(counts,) if counts else ()
                )
            except BpfError as error:
                self.counters["probe_refused"] += 1
                _log.warning("%s: %s", probe.place, error.message)
                detach_all(links)
                return []
        self._placed.add(probe.number)
        return links

    # -- the user's own program -------------------------------------------------------------------

    def _open_program(self, loaded: LoadedFamily, program: tuple[str, str] | None) -> None:
        wanted = [probe for probe in self._probes if probe.program]
        if wanted and program is None:
            raise OtelgpuError(
                f"{wanted[0].place}: the function {wanted[0].program} is in no program",
                hint="give the file that has it: --probe-program FILE.c",
            )
        if program is None:
            return
        btf = loaded.image.btf
        kind = btf.enumerators("probe_kind")["PROBE_HIT"]
        numbers = {probe.name: probe.number for probe in self._probes}
        self._own = BccProgram(*program, btf.dtype("probe_hit"), kind, numbers)
        for function in {probe.program for probe in wanted}:
            self._own.load(function)

    def _run_own(self, tgid: int, mapping: MappedFile, wanted: Sequence[UserProbe]) -> None:
        for probe in wanted:
            places = self._own_places.setdefault(tgid, {}) if probe.program else {}
            if not probe.program or probe.number in places or self._own is None:
                continue
            assert isinstance(probe.target, Functions), "no other has a program"
            path, symbol = f"/proc/{tgid}/root{mapping.path}", probe.target.symbol
            places[probe.number] = (path, symbol)
            try:
                self._own.attach(probe.program, tgid, path, symbol)
                self._placed.add(probe.number)
            except BpfError as error:
                self.counters["probe_refused"] += 1
                _log.warning("%s: %s", probe.place, error.message)

    # -- the kernel -------------------------------------------------------------------------------

    def _place_in_kernel(self, probe: UserProbe) -> None:
        target = probe.target
        try:
            if isinstance(target, Tracepoint):
                fields = fields_of(target.category, target.name)
                readings = [_of_field(probe, argument, fields) for argument in probe.arguments]
                place = self._report(probe, readings, returns=False)
                if place is not None:
                    program = self._programs["user_tracepoint"]
                    self._kernel_links.append(program.attach_tracepoint(target.category, target.name, place))
            elif isinstance(target, Kprobe):
                if not has_kprobes():
                    raise FileNotFoundError("this kernel allows no kprobes")
                program = self._programs["user_kprobe"]
                readings = [_of_call(argument) for argument in probe.arguments]
                place = self._report(probe, readings, returns=False)
                if place is not None:
                    self._kernel_links.append(program.attach_kprobe(target.symbol, place))
            else:
                return
        except (BpfError, OSError) as error:
            raise OtelgpuError(
                f"{probe.place}: {_described(probe)} cannot be probed: {_why(error)}",
                hint="see docs/how-to/probes.md for what a kernel must have",
            ) from error
        self._placed.add(probe.number)

    def _report(
        self, probe: UserProbe, readings: Sequence[Reading | None], *, returns: bool, inside: bool = False
    ) -> int | None:
        place = self._places.report(probe, readings, returns=returns, inside=inside)
        if place is None:
            self.counters["probe_places_full"] += 1
        return place


class _Places(Protocol):
    """What a program is reported of the place that it is attached to."""

    def report(
        self, probe: UserProbe, readings: Sequence[Reading | None], *, returns: bool, inside: bool
    ) -> int | None:
        """The cookie of one more place, None where there is no room. ``inside``: in the middle of a function."""


class _Table:
    """The map ``probes`` of family probe: what is read at each place."""

    def __init__(self, loaded: LoadedFamily) -> None:
        self._map = loaded.map("probes")
        self._layout = loaded.image.btf.dtype("probe_spec")
        self._used = 0

    def report(
        self, probe: UserProbe, readings: Sequence[Reading | None], *, returns: bool, inside: bool
    ) -> int | None:
        """See :class:`_Places`."""
        if self._used >= self._map.max_entries:
            return None
        place = self._used
        self._used += 1
        row = np.zeros(1, self._layout)[0]
        row["number"], row["count"], row["returns"] = probe.number, len(readings), returns
        row["least_us"] = probe.least_us
        for index, reading in enumerate(readings):
            if reading is not None:
                argument = row["arguments"][index]
                argument["offset"], argument["source"] = reading.offset, reading.source
                argument["size"], argument["is_signed"] = reading.size, reading.signed
                argument["reg"] = reading.register
        self._map.put(struct.pack("<I", place), row.tobytes())
        return place


class _Numbers:
    """Family profile reads nothing: a place is the probe's number, and whether the stack begins at an entry."""

    def report(
        self, probe: UserProbe, readings: Sequence[Reading | None], *, returns: bool, inside: bool
    ) -> int | None:
        """See :class:`_Places`."""
        return probe.number | (_INSIDE if inside else 0)


def _is_in(probe: UserProbe, path: str) -> bool:
    """Whether a mapped file is the one that a probe is for: by its whole path, or by its name and version."""
    target = probe.target
    if not isinstance(target, Functions | Usdt):
        return False
    wanted = target.library
    path = path.removesuffix(" (deleted)")
    if "/" in wanted:
        return fnmatch.fnmatchcase(path, wanted)
    name = os.path.basename(path)
    return fnmatch.fnmatchcase(name, wanted) or fnmatch.fnmatchcase(name, wanted + ".*")


def _of_call(argument: Argument) -> Reading:
    """Of a function's arguments by the System V ABI, or of its result."""
    if argument.where == _RESULT:
        return Reading(source=ArgumentSource.RESULT, size=argument.size, signed=argument.signed)
    place = int(argument.where.removeprefix("arg")) - 1
    if place >= _IN_REGISTERS:
        return Reading(
            source=ArgumentSource.MEMORY,
            size=argument.size,
            signed=argument.signed,
            register=_STACK_POINTER,
            offset=8 * (place - _IN_REGISTERS + 1),  # at the entry the return address is on top
        )
    return Reading(source=ArgumentSource.REGISTER, size=argument.size, signed=argument.signed, register=place)


def _of_field(probe: UserProbe, argument: Argument, fields: Mapping[str, Field]) -> Reading:
    field = fields.get(argument.where)
    if field is None or field.size not in (1, 2, 4, 8):
        known = ", ".join(name for name, each in fields.items() if each.size in (1, 2, 4, 8))
        raise OtelgpuError(
            f"{probe.place}: {_described(probe)} has no number {argument.where!r}; it has: {known}"
        )
    return Reading(source=ArgumentSource.FIELD, size=field.size, signed=field.signed, offset=field.offset)


def _described(probe: UserProbe) -> str:
    match probe.target:
        case Functions(symbol=symbol):
            return f"function {symbol}"
        case Usdt(provider=provider, name=name, until=until):
            return f"USDT {provider}:{name}" + (f" with {until}" if until else "")
        case Tracepoint(category=category, name=name):
            return f"tracepoint {category}/{name}"
        case Kprobe(symbol=symbol):
            return f"the kernel's function {symbol}"


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return str(error) if error.filename is None else "the kernel does not have it"
    return error.message if isinstance(error, OtelgpuError) else str(error)
