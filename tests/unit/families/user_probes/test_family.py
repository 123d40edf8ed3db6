"""Hits of a user's probes become operations, with the names and metrics that the user gave."""

from __future__ import annotations

import numpy as np

from otelgpu.engine.metric import Instrument
from otelgpu.engine.operation_signals import OperationSignals
from otelgpu.families.user_probes import family_of
from otelgpu.families.user_probes.decode import NO_SPAN, SLOTS, ProbeDecoder
from otelgpu.families.user_probes.probe_file import parse
from otelgpu.families.user_probes.signals import NOT_READ
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.user_probes import ArgumentSource, UserProbe

BTF = read_image("probe").btf
PROBES = parse(
    """{"probes": [
        {"library": "libx.so", "symbols": ["f"], "arguments": [{"name": "size", "from": "arg1", "type": "s32"},
         {"name": "left", "from": "arg2"}], "output": {"span": true, "metric": {"name": "own.size", "value": "size"}}},
        {"library": "libx.so", "symbols": ["g"], "arguments": [{"name": "left", "from": "arg3"}],
         "output": {"metric": {"name": "own.time", "instrument": "histogram"}}}
    ]}""",
    "p.json",
)


def hits(*found: dict[str, object], kind: str = "probe_hit") -> Batch:
    records = np.zeros(len(found), dtype=BTF.dtype("probe_hit"))
    for record, hit in zip(records, found, strict=True):
        record["head"]["time_ns"], record["head"]["tgid"], record["head"]["tid"] = 10, 100, 101
        for name, value in hit.items():
            (record if name in (records.dtype.names or ()) else record["head"])[name] = value
    return Batch(family="probe", kind=kind, records=records)


def decoded(*found: dict[str, object]) -> Operations:
    return ProbeDecoder(PROBES).decode(hits(*found))


def signals(probes: tuple[UserProbe, ...] = PROBES) -> OperationSignals:
    operations = family_of(probes).operations
    assert operations is not None
    made = operations.signals
    assert isinstance(made, OperationSignals)
    return made


def test_a_hit_is_what_the_record_says() -> None:
    rows = decoded(
        {"number": 1, "values": [2**64 - 5, 7, 0, 0], "read": 3, "duration_ns": 40, "returned": 1},
        {"number": 2, "values": [9, 0, 0, 0], "read": 1},
        {"number": 300},
    )
    assert rows["kind"].tolist() == [OperationKind.PROBE] * 2
    assert rows["api"].tolist() == [1, 2]
    assert (rows["start_ns"].tolist(), rows["duration_ns"].tolist()) == ([10, 10], [40, 0])
    assert rows["returned"].tolist() == [1, 0]
    assert rows["detail"].tolist() == [0, NO_SPAN]
    assert [rows[slot].tolist() for slot in SLOTS[:2]] == [[2**64 - 5, 9], [7, 0]]


def test_records_of_other_kinds_are_nothing() -> None:
    assert len(ProbeDecoder(PROBES).decode(hits({"number": 1}, kind="probe_new"))) == 0


def test_without_its_file_a_probe_is_called_by_its_number() -> None:
    assert ProbeDecoder(()).apis[7] == "probe7"
    assert ProbeDecoder(PROBES).apis[1] == "f"


def test_an_argument_is_reported_of_the_probes_that_read_it() -> None:
    size, left = signals().attributes[OperationKind.PROBE]
    assert (size.key, left.key) == ("otelgpu.probe.argument.size", "otelgpu.probe.argument.left")
    rows = decoded(
        {"number": 1, "values": [2**64 - 5, 7, 0, 0], "read": 3},
        {"number": 2, "values": [9, 8, 0, 0], "read": 1},
        {"number": 1, "values": [1, 2, 0, 0], "read": 1},
    )
    assert size.column(rows).tolist() == [-5, NOT_READ, 1]
    assert left.column(rows).tolist() == [7, 9, NOT_READ]
    assert size.absent == NOT_READ


def test_metrics_have_the_users_names() -> None:
    size, time = signals().metrics
    assert (size.metric.name, size.metric.instrument) == ("own.size", Instrument.COUNTER)
    assert (time.metric.name, time.metric.unit, time.metric.instrument) == (
        "own.time",
        "s",
        Instrument.HISTOGRAM,
    )
    assert (list(size.apis), list(time.apis), time.returned) == (["f"], ["g"], True)  # type: ignore[call-overload]
    rows = decoded({"number": 1, "values": [2**64 - 5, 0, 0, 0], "read": 1, "duration_ns": 2_000_000})
    assert size.value is not None and time.value is not None
    assert size.value(rows).tolist() == [0]  # the sum of a counter does not fall
    assert time.value(rows).tolist() == [0.002]


def test_numbers_are_those_of_the_records() -> None:
    assert BTF.enumerators("probe_kind")["PROBE_HIT"] == OperationKind.PROBE
    names = {f"ARGUMENT_{source.name}": source for source in ArgumentSource}
    assert BTF.enumerators("argument_source") == names
