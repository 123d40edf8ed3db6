"""A capture: the sequence of inputs on disk, with the BTF that describes the records.

Format: the magic line, then frames of a little-endian u32 length and that many bytes of MessagePack. The
first frame is :class:`Header`; the rest are inputs in order of arrival, record batches as raw bytes. A
capture that was cut off replays up to its last whole frame, which is counted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import numpy as np

from otelgpu.elf.btf import Btf, BtfError
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.output_files import open_output
from otelgpu.model.devices import (
    DeviceGone,
    DeviceInput,
    DeviceReadings,
    DeviceSeen,
    EnergyRead,
    ProcessDevices,
)
from otelgpu.model.fabric import (
    FabricInput,
    HardwareError,
    PortGone,
    PortReadings,
    PortSeen,
    QueuePairReadings,
)
from otelgpu.model.inputs import (
    Batch,
    CallsCounted,
    CallsUnobserved,
    ClockAnchor,
    FunctionNamed,
    Input,
    LossCounted,
    ProcessGone,
    ProcessSeen,
    RecordsLost,
    RuntimesSeen,
    Tick,
)
from otelgpu.model.losses import Reasons
from otelgpu.model.pressure import ProcessPressed
from otelgpu.model.profiles import FrameType
from otelgpu.model.resource import AttributeValue, resource
from otelgpu.model.samples import Frame, StackNamed
from otelgpu.model.switches import SwitchesRead

REASONS: Final = Reasons(
    "capture",
    {
        "write_failed": "a capture could not be written on; observing went on without it",
    },
)
"""What one count of (``capture``, reason) means."""

MAGIC: Final = b"otelgpu capture\n"
_LENGTH: Final = struct.Struct("<I")
_FRAME_LIMIT: Final = 256 << 20
_STACK_FRAMES: Final = 262_144  # that stacks refer to by number; beyond, numbers begin anew


class CaptureError(OtelgpuError):
    """The file is not a capture, or not one that this version can read."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay needs before the first input."""

    version: str  # of otelgpu; informational
    seed: int
    start_unix_ns: int
    own: dict[str, AttributeValue]  # resource of the program itself
    btf: dict[str, bytes]  # family → .BTF section


class _Records(msgspec.Struct, frozen=True, tag="records", array_like=True):
    family: str
    kind: str
    data: bytes


class _Clock(msgspec.Struct, frozen=True, tag="clock", array_like=True):
    monotonic_ns: int
    unix_ns: int


class _Seen(msgspec.Struct, frozen=True, tag="process", array_like=True):
    tgid: int
    time_ns: int
    attributes: dict[str, AttributeValue]
    parent: int = 0
    same_program: bool = False
    payer: str = ""


class _Runtimes(msgspec.Struct, frozen=True, tag="runtimes", array_like=True):
    tgid: int
    time_ns: int
    names: tuple[str, ...]


class _Gone(msgspec.Struct, frozen=True, tag="gone", array_like=True):
    tgid: int
    time_ns: int


class _Named(msgspec.Struct, frozen=True, tag="function", array_like=True):
    tgid: int
    address: int
    name: str
    known: bool
    module: str = ""
    build_id: str = ""
    offset: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] = 0


class _StackFrame(msgspec.Struct, frozen=True, array_like=True):
    type: FrameType
    name: str
    file: str
    line: int
    system_name: str
    build_id: str
    address: int


class _Stack(msgspec.Struct, frozen=True, tag="stack", array_like=True):
    """``frames`` are numbers: of ``new`` ones from ``first`` on, below it of those that earlier stacks brought."""

    tgid: int
    stack: int
    truncated: str
    first: int
    new: list[_StackFrame]
    frames: list[int]


class _Loss(msgspec.Struct, frozen=True, tag="loss", array_like=True):
    family: str
    reason: str
    count: int


class _RecordsLost(msgspec.Struct, frozen=True, tag="records_lost", array_like=True):
    tgid: int
    family: str
    count: int


class _Unobserved(msgspec.Struct, frozen=True, tag="unobserved", array_like=True):
    tgid: int
    family: str
    duration_ns: int


class _Counted(msgspec.Struct, frozen=True, tag="calls", array_like=True):
    tgid: int
    family: str
    kind: int
    api: str
    count: int


class _Tick(msgspec.Struct, frozen=True, tag="tick", array_like=True):
    time_ns: int


class _Device(msgspec.Struct, frozen=True, tag="device", array_like=True):
    seen: DeviceSeen


class _Readings(msgspec.Struct, frozen=True, tag="readings", array_like=True):
    readings: DeviceReadings


class _Energy(msgspec.Struct, frozen=True, tag="energy", array_like=True):
    read: EnergyRead


class _DeviceGone(msgspec.Struct, frozen=True, tag="device_gone", array_like=True):
    gone: DeviceGone


class _ProcessDevices(msgspec.Struct, frozen=True, tag="process_devices", array_like=True):
    devices: ProcessDevices


class _Port(msgspec.Struct, frozen=True, tag="port", array_like=True):
    seen: PortSeen


class _PortReadings(msgspec.Struct, frozen=True, tag="port_readings", array_like=True):
    readings: PortReadings


class _PairReadings(msgspec.Struct, frozen=True, tag="queue_pair_readings", array_like=True):
    readings: QueuePairReadings


class _PortGone(msgspec.Struct, frozen=True, tag="port_gone", array_like=True):
    gone: PortGone


class _HardwareError(msgspec.Struct, frozen=True, tag="hardware_error", array_like=True):
    error: HardwareError


_Plain = (
    Batch
    | ClockAnchor
    | ProcessSeen
    | RuntimesSeen
    | ProcessGone
    | FunctionNamed
    | LossCounted
    | RecordsLost
    | CallsUnobserved
    | CallsCounted
    | Tick
    | DeviceInput
    | FabricInput
    | ProcessPressed
    | SwitchesRead
)
"""Inputs that are written without regard to those before."""


class _Pressed(msgspec.Struct, frozen=True, tag="pressed", array_like=True):
    pressed: ProcessPressed


class _Switches(msgspec.Struct, frozen=True, tag="switches", array_like=True):
    read: SwitchesRead


_DeviceFrame = _Device | _Readings | _Energy | _DeviceGone | _ProcessDevices
_FabricFrame = _Port | _PortReadings | _PairReadings | _PortGone | _HardwareError
_Frame = (
    _Records
    | _Clock
    | _Seen
    | _Runtimes
    | _Gone
    | _Named
    | _Stack
    | _Loss
    | _RecordsLost
    | _Unobserved
    | _Counted
    | _Tick
    | _DeviceFrame
    | _FabricFrame
    | _Pressed
    | _Switches
)


def create_capture(path: Path) -> BinaryIO:
    """An empty file, for the owner's eyes only: prompts and credentials are in what crosses sockets.

    Raises :class:`CaptureError`.
    """
    try:
        return os.fdopen(open_output(path, 0o600), "wb")
    except OSError as error:
        raise CaptureError(f"cannot write capture {path}: {error.strerror}") from error


class CaptureWriter:
    """Writes inputs as they come. Raises :class:`CaptureError` when the disk does not take them."""

    def __init__(self, path: Path, header: Header, file: BinaryIO | None = None) -> None:
        """``file``: what :func:`create_capture` opened at ``path``, where that was done before."""
        self._path = path
        self._encode = msgspec.msgpack.Encoder().encode
        self._stack_frames: dict[Frame, int] = {}
        self._file = file or create_capture(path)
        try:
            self._file.write(MAGIC)
        except OSError as error:
            raise CaptureError(f"cannot write capture {path}: {error.strerror}") from error
        self._write(header)

    def write(self, item: Input) -> None:
        """Append one input."""
        self._write(self._stack(item) if isinstance(item, StackNamed) else _frame(item))

    def _stack(self, item: StackNamed) -> _Stack:
        """Each distinct frame is written once, with the first stack that has it."""
        if len(self._stack_frames) >= _STACK_FRAMES:
            self._stack_frames.clear()
        known = self._stack_frames
        first = len(known)
        numbers = [known.setdefault(frame, len(known)) for frame in item.frames]
        new = {n: frame for frame, n in zip(item.frames, numbers, strict=True) if n >= first}
        rows = [_stack_frame(frame) for _, frame in sorted(new.items(), key=lambda each: each[0])]
        return _Stack(item.tgid, item.stack, item.truncated, first, rows, numbers)

    def _write(self, frame: Header | _Frame) -> None:
        data = self._encode(frame)
        try:
            self._file.write(_LENGTH.pack(len(data)))
            self._file.write(data)
        except OSError as error:
            raise CaptureError(f"cannot write capture {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Write what is still buffered; idempotent. Raises :class:`CaptureError` when the disk is full."""
        try:
            self._file.close()
        except OSError as error:
            raise CaptureError(f"cannot write capture {self._path}: {error.strerror}") from error


class CaptureReader:
    """Reads a capture; iterating gives the inputs in order. ``truncated`` reports if the end was cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.truncated = False
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise CaptureError(f"cannot read capture {path}: {error.strerror}") from error
        try:
            self.header, self.btf = self._read_header()
        except BaseException:
            self._file.close()
            raise
        self._decode = msgspec.msgpack.Decoder(_Frame).decode
        self._stack_frames: list[Frame] = []

    def _read_header(self) -> tuple[Header, dict[str, Btf]]:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise CaptureError(f"{self._path} is not an otelgpu capture")
        first = self._frame()
        try:
            header = msgspec.msgpack.decode(first or b"", type=Header)
            return header, {family: Btf(section) for family, section in header.btf.items()}
        except (msgspec.MsgspecError, BtfError, ValueError) as error:  # ValueError: text that is not UTF-8
            raise CaptureError(f"capture {self._path} has an unreadable header: {error}") from error

    def __iter__(self) -> Iterator[Input]:
        while (data := self._frame()) is not None:
            try:
                yield self._input(self._decode(data))
            except (msgspec.MsgspecError, BtfError, ValueError) as error:
                raise CaptureError(f"capture {self._path} is damaged: {error}") from error

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _frame(self) -> bytes | None:
        prefix = self._file.read(_LENGTH.size)
        if len(prefix) == 0:
            return None
        if len(prefix) == _LENGTH.size:
            (length,) = _LENGTH.unpack(prefix)
            if length > _FRAME_LIMIT:
                raise CaptureError(f"capture {self._path} is damaged: a frame of {length} bytes")
            data = self._file.read(length)
            if len(data) == length:
                return data
        self.truncated = True
        return None

    def _stack(self, reported: _Stack) -> StackNamed:
        """Raises ValueError for numbers that no frame has."""
        frames = self._stack_frames
        if not 0 <= reported.first <= len(frames) or reported.first + len(reported.new) > 2 * _STACK_FRAMES:
            raise ValueError(f"frames of a stack from {reported.first} on after {len(frames)}")
        del frames[reported.first :]
        frames += [
            Frame(
                type=row.type,
                name=row.name,
                file=row.file,
                line=row.line,
                system_name=row.system_name,
                build_id=row.build_id,
                address=row.address,
            )
            for row in reported.new
        ]
        if not all(0 <= number < len(frames) for number in reported.frames):
            raise ValueError("a stack names a frame that there is not")
        return StackNamed(
            tgid=reported.tgid,
            stack=reported.stack,
            frames=tuple(frames[number] for number in reported.frames),
            truncated=reported.truncated,
        )

    def _input(self, frame: _Frame) -> Input:
        match frame:
            case _Stack():
                return self._stack(frame)
            case _Records(family, kind, data):
                if family not in self.btf:
                    raise CaptureError(f"capture {self._path} describes no family {family}")
                return Batch(
                    family=family, kind=kind, records=np.frombuffer(data, dtype=self.btf[family].dtype(kind))
                )
            case _Clock(monotonic_ns, unix_ns):
                return ClockAnchor(monotonic_ns=monotonic_ns, unix_ns=unix_ns)
            case _Seen(tgid, time_ns, attributes, parent, same_program, payer):
                return ProcessSeen(
                    tgid=tgid,
                    time_ns=time_ns,
                    resource=resource(attributes),
                    parent=parent,
                    same_program=same_program,
                    payer=payer,
                )
            case _Runtimes(tgid, time_ns, found):
                return RuntimesSeen(tgid=tgid, time_ns=time_ns, runtimes=found)
            case _Gone(tgid, time_ns):
                return ProcessGone(tgid=tgid, time_ns=time_ns)
            case _Named():
                return FunctionNamed(**msgspec.structs.asdict(frame))
            case _Loss(family, reason, count):
                return LossCounted(family=family, reason=reason, count=count)
            case _RecordsLost(tgid, family, count):
                return RecordsLost(tgid=tgid, family=family, count=count)
            case _Unobserved(tgid, family, duration_ns):
                return CallsUnobserved(tgid=tgid, family=family, duration_ns=duration_ns)
            case _Counted(tgid, family, operation, api, count):
                return CallsCounted(tgid=tgid, family=family, kind=operation, api=api, count=count)
            case _Tick(time_ns):
                return Tick(time_ns=time_ns)
            case _Pressed(fact) | _Switches(fact):
                return fact
            case _Device(fact) | _Readings(fact) | _Energy(fact) | _DeviceGone(fact) | _ProcessDevices(fact):
                return fact
            case (
                _Port(fact)
                | _PortReadings(fact)
                | _PairReadings(fact)
                | _PortGone(fact)
                | _HardwareError(fact)
            ):
                return fact


def _frame(item: _Plain) -> _Frame:
    match item:
        case Batch():
            return _Records(item.family, item.kind, item.records.tobytes())
        case ClockAnchor():
            return _Clock(item.monotonic_ns, item.unix_ns)
        case ProcessSeen():
            attributes = {_text(k): _value(v) for k, v in item.resource.attributes}
            return _Seen(
                item.tgid, item.time_ns, attributes, item.parent, item.same_program, _text(item.payer)
            )
        case RuntimesSeen():
            return _Runtimes(item.tgid, item.time_ns, item.runtimes)
        case ProcessGone():
            return _Gone(item.tgid, item.time_ns)
        case FunctionNamed():
            place = _text(item.module), item.build_id, item.offset
            return _Named(item.tgid, item.address, _text(item.name), item.known, *place)
        case CallsCounted():
            return _Counted(item.tgid, item.family, item.kind, item.api, item.count)
        case RecordsLost():
            return _RecordsLost(item.tgid, item.family, item.count)
        case CallsUnobserved():
            return _Unobserved(item.tgid, item.family, item.duration_ns)
        case LossCounted():
            return _Loss(item.family, item.reason, item.count)
        case Tick():
            return _Tick(item.time_ns)
        case ProcessPressed():
            return _Pressed(item)
        case SwitchesRead():
            return _Switches(item)
        case DeviceSeen() | DeviceReadings() | EnergyRead() | DeviceGone() | ProcessDevices():
            return _device_frame(item)
        case _:
            return _fabric_frame(item)


def _device_frame(item: DeviceInput) -> _DeviceFrame:
    match item:
        case DeviceSeen():
            return _Device(item)
        case DeviceReadings():
            return _Readings(item)
        case EnergyRead():
            return _Energy(item)
        case DeviceGone():
            return _DeviceGone(item)
        case ProcessDevices():
            return _ProcessDevices(item)


def _fabric_frame(item: FabricInput) -> _FabricFrame:
    match item:
        case PortSeen():
            return _Port(item)
        case PortReadings():
            return _PortReadings(item)
        case QueuePairReadings():
            return _PairReadings(item)
        case PortGone():
            return _PortGone(item)
        case HardwareError():
            return _HardwareError(item)


def _stack_frame(frame: Frame) -> _StackFrame:
    texts = (_text(frame.name), _text(frame.file))
    return _StackFrame(
        frame.type, *texts, frame.line, _text(frame.system_name), frame.build_id, frame.address
    )


def _text(text: str) -> str:
    """Text from file names may hold lone surrogates (os.fsdecode): "?" in their place, as exporters do."""
    return text.encode(errors="replace").decode()


def _value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return _text(value)
    return tuple(map(_text, value)) if isinstance(value, tuple) else value
