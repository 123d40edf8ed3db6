"""Captures: every input there and back, cut off or damaged, and replayed to the same spans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from otelgpu.elf.btf import BtfError
from otelgpu.engine import registry
from otelgpu.engine.pipeline import Pipeline
from otelgpu.kernel.loader import read_image
from otelgpu.model.devices import (
    DeviceGone,
    DeviceReadings,
    DeviceSeen,
    EnergyRead,
    ProcessDevices,
    ProcessReading,
    Quantity,
)
from otelgpu.model.fabric import (
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
from otelgpu.model.profiles import FrameType
from otelgpu.model.resource import resource
from otelgpu.model.samples import Frame, StackNamed
from otelgpu.sources.capture import MAGIC, CaptureError, CaptureReader, CaptureWriter, Header
from tests.rig.examples import examples
from tests.unit.elf.test_btf import SMALL_BYTES
from tests.unit.families.records import UNIX_OFFSET_NS, Host, btf, together
from tests.unit.model.builders import read_out

SECTIONS = {name: read_image(name).btf_section for name in registry.with_records()}
OWN = {"service.name": "otelgpu", "process.pid": 7}


def header(**fields: Any) -> Header:
    given_fields = {
        "version": "0",
        "seed": 1,
        "start_unix_ns": UNIX_OFFSET_NS,
        "own": OWN,
        "btf": SECTIONS,
    } | fields
    return Header(**given_fields)


def write(path: Path, inputs: list[Input], **fields: Any) -> Path:
    writer = CaptureWriter(path, header(**fields))
    for item in inputs:
        writer.write(item)
    writer.close()
    return path


def read(path: Path) -> tuple[CaptureReader, list[Input]]:
    reader = CaptureReader(path)
    try:
        return reader, list(reader)
    finally:
        reader.close()


def same(a: Input, b: Input) -> bool:
    if isinstance(a, Batch) and isinstance(b, Batch):
        return (a.family, a.kind, a.records.tobytes(), a.records.dtype) == (
            b.family,
            b.kind,
            b.records.tobytes(),
            b.records.dtype,
        )
    return a == b


def launches(count: int = 3) -> Batch:
    host = Host()
    host.launch(times=count)
    return together(*(sent.batch for sent in host.sent))


FRAMES = (
    Frame(type=FrameType.KERNEL, name="vfs_write", file="[kernel]"),
    Frame(
        type=FrameType.NATIVE,
        name="f(int)",
        file="/lib/x.so",
        system_name="_Z1fi",
        build_id="ab12",
        address=2**63,
    ),
    Frame(type=FrameType.PYTHON, name="Model.forward", file="/app/model.py", line=42),
)

EVERY_INPUT: list[Input] = [
    launches(),
    Batch(family="cuda", kind="cuda_call", records=np.zeros(0, btf("cuda").dtype("cuda_call"))),
    ClockAnchor(monotonic_ns=5, unix_ns=2**63 - 1),
    ProcessSeen(
        tgid=1, time_ns=2, resource=resource({"s": "x", "i": 1, "f": 1.0, "b": True, "l": ("a", "")})
    ),
    RuntimesSeen(tgid=1, time_ns=2, runtimes=("asyncio", "cpython")),
    RuntimesSeen(tgid=1, time_ns=2, runtimes=()),
    ProcessGone(tgid=2**31, time_ns=2**64 - 1),
    FunctionNamed(tgid=1, address=2**64 - 1, name="void f<ä>(int)", known=True),
    FunctionNamed(tgid=1, address=0, name="libx.so+0x10", known=False),
    LossCounted(family="cuda", reason="ring_full", count=2**40),
    RecordsLost(tgid=2**31, family="http", count=2**40),
    CallsUnobserved(tgid=2**31, family="cuda", duration_ns=2**40),
    CallsCounted(tgid=0, family="cuda", kind=1, api="cudaLaunchKernel", count=2**33),
    Tick(time_ns=0),
    DeviceSeen(time_ns=1, uuid="GPU-1", index=0, minor=0, model="H200"),
    DeviceReadings(
        time_ns=2,
        uuid="GPU-1",
        values={Quantity.POWER_MILLIWATTS: 70_000},
        processes=(ProcessReading(tgid=7, device="GPU-1", memory_bytes=2**40),),
    ),
    DeviceGone(time_ns=3, uuid="GPU-1", failed=True),
    EnergyRead(time_ns=3, uuid="GPU-1", millijoules=123_456),
    EnergyRead(time_ns=4, uuid="GPU-2", milliwatts=70_000),
    ProcessDevices(tgid=7, time_ns=4, uuids=("GPU-1", "")),
    PortSeen(time_ns=5, device="mlx5_0", port=1, state="ACTIVE", link_layer="Ethernet"),
    PortSeen(
        time_ns=6,
        device="mlx5_0",
        port=1,
        state="DOWN",
        link_layer="InfiniBand",
        rate_bits_per_s=10**11,
        driver="mlx5_core",
        firmware_version="22.31.1014",
        interface="ib0",
        pci_bus_id="0000:81:00.0",
        gids={0: "fe80::1", 7: "::ffff:10.0.0.1"},
    ),
    PortReadings(time_ns=7, device="mlx5_0", port=1, values={"port_xmit_data": 2**64 - 1, "RNR sent": 0}),
    QueuePairReadings(time_ns=8, device="mlx5_0", port=1, number=2**24 - 1, tgid=7, values={}),
    QueuePairReadings(time_ns=8, device="mlx5_0", port=1, number=17, tgid=0, values={"packet_seq_err": 3}),
    PortGone(time_ns=9, device="mlx5_0", port=1),
    StackNamed(tgid=7, stack=2**64 - 1, frames=(*FRAMES, FRAMES[0]), truncated="no_row"),
    StackNamed(tgid=8, stack=1, frames=()),
    HardwareError(
        time_ns=10,
        kind="xid",
        code=79,
        pci_bus_id="0000:cb:00",
        tgid=7,
        process="python",
        message="GPU has …",
    ),
]


@pytest.mark.parametrize("item", EVERY_INPUT, ids=lambda item: type(item).__name__)
def test_every_input_comes_back(item: Input, tmp_path: Path) -> None:
    reader, (found,) = read(write(tmp_path / "c", [item]))
    assert same(found, item)
    assert not reader.truncated


def test_attribute_types_come_back(tmp_path: Path) -> None:
    seen = EVERY_INPUT[3]
    assert isinstance(seen, ProcessSeen)
    _, (found,) = read(write(tmp_path / "c", [seen]))
    assert isinstance(found, ProcessSeen)
    assert [type(v) for _, v in found.resource.attributes] == [type(v) for _, v in seen.resource.attributes]


@pytest.mark.parametrize(
    "item",
    [
        FunctionNamed(tgid=1, address=1, name="lib\udcff.so+0x1", known=False),
        ProcessSeen(
            tgid=1, time_ns=2, resource=resource({"process.executable.name": "a\udcffb", "l": ("\udcff",)})
        ),
    ],
    ids=["function", "process"],
)
def test_a_file_name_that_is_no_unicode_is_written_all_the_same(item: Input, tmp_path: Path) -> None:
    """Such names reach us with lone surrogates (os.fsdecode); the exporters put "?" in their place."""
    _, found = read(write(tmp_path / "c", [item, Tick(time_ns=1)]))
    assert [type(entry) for entry in found] == [type(item), Tick]


def test_the_header_comes_back(tmp_path: Path) -> None:
    reader, _ = read(write(tmp_path / "c", [], seed=2**63 - 1))
    assert reader.header == header(seed=2**63 - 1)
    sizes = {name: types.dtype("record_head").itemsize for name, types in reader.btf.items()}
    assert sizes == dict.fromkeys(registry.with_records(), 64)


def test_only_the_owner_may_read_what_crossed_the_sockets(tmp_path: Path) -> None:
    path = write(tmp_path / "capture", [])
    assert path.stat().st_mode & 0o777 == 0o600


def test_records_that_are_a_view_are_written_in_their_order(tmp_path: Path) -> None:
    batch = launches(6)
    view = Batch(family="cuda", kind="cuda_call", records=batch.records[::-2])
    _, (found,) = read(write(tmp_path / "c", [view]))
    assert same(found, view)


def test_a_frame_of_many_stacks_is_written_once(tmp_path: Path) -> None:
    stacks: list[Input] = [
        StackNamed(tgid=7, stack=number, frames=(FRAMES[number % 3], *FRAMES)) for number in range(1, 50)
    ]
    path = write(tmp_path / "c", stacks)
    assert read(path)[1] == stacks
    assert [path.read_bytes().count(frame.name.encode()) for frame in FRAMES] == [1, 1, 1]


def test_a_capture_with_more_frames_than_are_numbered_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otelgpu.sources.capture._STACK_FRAMES", 3)
    frames = [Frame(type=FrameType.NATIVE, name=f"f{number}") for number in range(9)]
    stacks: list[Input] = [
        StackNamed(tgid=1, stack=number + 1, frames=tuple(frames[number : number + 2])) for number in range(8)
    ]
    path = write(tmp_path / "c", stacks + stacks)
    assert read(path)[1] == stacks + stacks
    with monkeypatch.context() as patch:  # whoever reads goes by what is written, not by the number
        patch.setattr("otelgpu.sources.capture._STACK_FRAMES", 1000)
        assert read(path)[1] == stacks + stacks


# -- bad files --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_capture_cut_anywhere_is_an_error_or_truncated(tmp_path: Path) -> None:
    """Up to the end of the header: an error. From there on: what was whole, and truncated between frames only."""
    small = {"cuda": SMALL_BYTES}
    whole = write(
        tmp_path / "whole", [item for item in EVERY_INPUT if not isinstance(item, Batch)], btf=small
    )
    data, (_, inputs) = whole.read_bytes(), read(whole)
    empty = len(write(tmp_path / "empty", [], btf=small).read_bytes())
    counts = []
    for length in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:length])
        if length < empty:
            with pytest.raises(CaptureError):
                read(tmp_path / "cut")
            continue
        reader, found = read(tmp_path / "cut")
        assert found == inputs[: len(found)]
        counts.append((len(found), reader.truncated))
    whole_frames = [count for count, truncated in counts if not truncated]
    assert whole_frames == list(range(len(inputs)))


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_capture_is_an_error_or_other_inputs(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "damaged"
    if not (tmp_path / "good").exists():
        write(tmp_path / "good", [*EVERY_INPUT[2:], launches(1)], btf={"cuda": SECTIONS["cuda"]})
    damaged = bytearray((tmp_path / "good").read_bytes())
    tail = len(damaged) - 700
    for _ in range(data.draw(st.integers(1, 3))):
        low = data.draw(st.sampled_from([0, len(MAGIC), tail]))
        damaged[data.draw(st.integers(low, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(damaged))
    try:
        read(path)
    except CaptureError:
        pass


@pytest.mark.parametrize(
    "content", [b"", b"otel", b"PK\3\4 something else", MAGIC, MAGIC + b"\xff" * 8, MAGIC + bytes(4)]
)
def test_what_is_no_capture(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(CaptureError, match=str(tmp_path / "c")):
        CaptureReader(tmp_path / "c")


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=f"cannot read capture {tmp_path / 'none'}: No such file"):
        CaptureReader(tmp_path / "none")
    with pytest.raises(CaptureError, match="cannot write capture"):
        CaptureWriter(tmp_path / "none" / "c", header())


@pytest.mark.parametrize("records", [0, 100])
def test_a_full_disk_is_an_error_of_ours_at_a_write_or_at_the_close(records: int) -> None:
    with pytest.raises(CaptureError, match="cannot write capture /dev/full: No space left"):
        write(Path("/dev/full"), [launches(records)] if records else [], btf={})


@pytest.mark.parametrize(
    ("family", "kind", "message"),
    [("alien", "alien_launch", "no family alien"), ("cuda", "cuda_new", "cuda_new")],
)
def test_records_that_the_header_does_not_describe(
    family: str, kind: str, message: str, tmp_path: Path
) -> None:
    alien = Batch(family=family, kind=kind, records=launches().records)
    with pytest.raises(CaptureError, match=message):
        read(write(tmp_path / "c", [alien]))


def test_records_of_another_length(tmp_path: Path) -> None:
    odd = Batch(family="cuda", kind="cuda_call", records=np.zeros(5, "u1"))
    with pytest.raises(CaptureError, match="damaged"):
        read(write(tmp_path / "c", [odd]))


def test_a_header_whose_types_are_damaged(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="unreadable header") as caught:
        read(write(tmp_path / "c", [], btf={"cuda": b"nonsense"}))
    assert isinstance(caught.value.__cause__, BtfError)


# -- replay -----------------------------------------------------------------------------------------


def reported(inputs: list[Input], types: Any, seed: int) -> tuple[list[str], Any, bytes]:
    session = Pipeline(
        registry.with_records(), types, seed=seed, own=resource(OWN), start_unix_ns=UNIX_OFFSET_NS
    )  # fmt: skip
    rows = [repr(row) for item in inputs for row in read_out(session.feed(item))]
    rows += [repr(row) for row in read_out(session.finish())]
    return rows, session.summary, session.read_metrics()[0].SerializeToString(deterministic=True)


def test_a_replay_gives_what_the_live_session_gave(tmp_path: Path) -> None:
    host = Host()
    host.accept()
    for tokens in (1, 3, 2):
        host.serve(tokens=tokens)
        host.launch(tid=300)
    live = [*host.inputs(), LossCounted(family="cuda", reason="ring_full", count=2)]
    live += [host.gone(), Tick(time_ns=host.now_ns + 10)]
    reader, found = read(write(tmp_path / "c", live, seed=99))
    assert reported(found, reader.btf, reader.header.seed) == reported(
        live, {n: btf(n) for n in SECTIONS}, 99
    )
