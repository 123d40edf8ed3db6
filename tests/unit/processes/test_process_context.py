"""Process contexts (OTEP 4719): good ones, damaged ones, ones that change, and memory that is anything."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otelgpu.processes.memory import OpenMemory
from otelgpu.processes.process_context import (
    MAX_PAYLOAD_BYTES,
    PayloadError,
    ProcessContext,
    ProcessContexts,
    parse_process_context,
)

TGID = 42
AT, PAYLOAD_AT = 0x1000, 0x2000


def text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def texts(key: str, *values: str) -> KeyValue:
    items = [AnyValue(string_value=value) for value in values]
    return KeyValue(key=key, value=AnyValue(array_value=ArrayValue(values=items)))


def varint(value: int) -> bytes:
    return (bytes([value & 0x7F | 0x80]) + varint(value >> 7)) if value > 0x7F else bytes([value])


def message(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def payload(*resource: KeyValue, attributes: tuple[KeyValue, ...] = ()) -> bytes:
    parts = [message(1, Resource(attributes=resource).SerializeToString())]
    return b"".join(parts + [message(2, each.SerializeToString()) for each in attributes])


THREADS = (
    text("threadlocal.schema_version", "tlsdesc_v1_dev"),
    texts("threadlocal.attribute_key_map", "a", "b"),
)
GOOD = payload(text("service.name", "checkout"), attributes=THREADS)


class Memory:
    """A /proc with one process in it, whose memory is what a test says."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        (proc / str(TGID)).mkdir()
        self._mem = proc / str(TGID) / "mem"
        self._mem.write_bytes(bytes(0x10000))
        self.name("/memfd:OTEL_CTX (deleted)")

    def name(self, *names: str) -> None:
        lines = [f"{AT:x}-{AT + 0x1000:x} rw-p 00000000 00:01 7 {' ' * 20}{name}" for name in names]
        (self.proc / str(TGID) / "maps").write_text("".join(f"{line}\n" for line in lines))

    def write(self, at: int, data: bytes) -> None:
        with self._mem.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def publish(
        self,
        content: bytes = GOOD,
        *,
        signature: bytes = b"OTEL_CTX",
        version: int = 2,
        size: int | None = None,
        time_ns: int = 7,
        at: int = PAYLOAD_AT,
    ) -> None:
        given_size = len(content) if size is None else size
        self.write(AT, struct.pack("<8sIIQQ", signature, version, given_size, time_ns, at))
        self.write(PAYLOAD_AT, content)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path)


@pytest.fixture
def contexts(memory: Memory) -> ProcessContexts:
    return ProcessContexts(proc=memory.proc)


def counted(contexts: ProcessContexts) -> dict[str, int]:
    return {reason.removeprefix("process_context_"): n for reason, n in contexts.counters.items() if n}


@pytest.mark.parametrize(
    "name", ["/memfd:OTEL_CTX (deleted)", "/memfd:OTEL_CTX", "[anon:OTEL_CTX]", "[anon_shmem:OTEL_CTX]"]
)
def test_a_context_is_found_by_the_name_of_its_memory(
    memory: Memory, contexts: ProcessContexts, name: str
) -> None:
    memory.name("[heap]", name)
    memory.publish()
    assert contexts.look_at(TGID, 0)
    assert contexts.of(TGID) == ProcessContext(
        resource={"service.name": "checkout"}, schema_version="tlsdesc_v1_dev", attribute_keys=("a", "b")
    )
    assert counted(contexts) == {}


@pytest.mark.parametrize("name", ["[heap]", "[anon:OTEL]", "/tmp/OTEL_CTX"])
def test_other_memory_is_not_read(memory: Memory, contexts: ProcessContexts, name: str) -> None:
    memory.name(name)
    memory.publish()
    assert not contexts.look_at(TGID, 0)
    assert contexts.of(TGID) is None


def test_what_is_published_again_is_read_again_but_not_more_than_once_a_second(
    memory: Memory, contexts: ProcessContexts
) -> None:
    memory.publish(payload(text("service.name", "a")))
    assert contexts.published(TGID, AT, 10.0)
    for number in range(20):
        memory.publish(payload(text("service.name", f"b{number}")), time_ns=8 + number)
        assert not contexts.published(TGID, AT, 10.1)
    assert contexts.retry(10.9) == []
    assert contexts.retry(11.0) == [TGID]
    found = contexts.of(TGID)
    assert found is not None and found.resource == {"service.name": "b19"}
    assert contexts.retry(20.0) == []  # nothing was published since


def test_the_same_said_twice_is_no_news(memory: Memory, contexts: ProcessContexts) -> None:
    memory.publish()
    assert contexts.published(TGID, AT, 0)
    memory.publish(time_ns=8)
    assert not contexts.published(TGID, AT, 5)


def test_what_was_known_outlives_a_damaged_update(memory: Memory, contexts: ProcessContexts) -> None:
    memory.publish()
    assert contexts.published(TGID, AT, 0)
    memory.publish(b"\xff" * 9, time_ns=8)
    assert not contexts.published(TGID, AT, 5)
    assert contexts.of(TGID) is not None
    assert counted(contexts) == {"damaged": 1}
    contexts.forget(TGID)
    assert contexts.of(TGID) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"signature": b"OTEL_CTY"}, "foreign"),
        ({"version": 1}, "foreign"),
        ({"size": MAX_PAYLOAD_BYTES + 1}, "foreign"),
        ({"time_ns": 0}, "changing"),
        ({"at": 0x7FFFFFFFF000}, "unreadable"),
        ({"at": 0xFFFFFFFFFFFFFFFF}, "unreadable"),
        ({"at": 0xFFF0, "size": 0x100}, "unreadable"),
        ({"content": GOOD[:-1]}, "damaged"),
    ],
)
def test_what_cannot_be_read_is_counted(
    memory: Memory, contexts: ProcessContexts, changes: dict[str, object], reason: str
) -> None:
    memory.publish(**changes)  # type: ignore[arg-type]
    assert not contexts.published(TGID, AT, 0)
    assert contexts.of(TGID) is None
    assert counted(contexts) == {reason: 1}


def test_a_payload_that_changes_while_it_is_read_is_not_believed(
    memory: Memory, contexts: ProcessContexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from otelgpu.processes import process_context

    plain, times = process_context._bytes_at, iter(range(100, 200))

    def changing(opened: OpenMemory, *ranges: tuple[int, int]) -> tuple[bytes, ...]:
        if ranges[0][0] == PAYLOAD_AT:
            memory.publish(time_ns=next(times))
        return plain(opened, *ranges)

    memory.publish()
    monkeypatch.setattr(process_context, "_bytes_at", changing)
    assert not contexts.published(TGID, AT, 0)
    assert counted(contexts) == {"changing": 1}


def test_threads_that_publish_in_another_way_are_counted(memory: Memory, contexts: ProcessContexts) -> None:
    memory.publish(payload(attributes=(text("threadlocal.schema_version", "nodejs_v1_dev"),)))
    assert contexts.published(TGID, AT, 0)
    assert counted(contexts) == {"schema_unknown": 1}


def test_a_process_that_is_gone_is_nothing(contexts: ProcessContexts) -> None:
    assert not contexts.look_at(TGID + 1, 0)
    assert not contexts.published(TGID + 1, AT, 0)
    assert counted(contexts) == {"unreadable": 1}


def test_attributes_of_every_kind() -> None:
    def of(value: AnyValue) -> dict[str, object]:
        return dict(parse_process_context(payload(KeyValue(key="k", value=value))).resource)

    assert of(AnyValue(bool_value=True)) == {"k": True}
    assert of(AnyValue(int_value=-3)) == {"k": -3}
    assert of(AnyValue(double_value=0.5)) == {"k": 0.5}
    for passed_over in (
        AnyValue(),
        AnyValue(bytes_value=b"x"),
        AnyValue(double_value=float("nan")),
        AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1)])),
    ):
        assert of(passed_over) == {}


def test_unknown_fields_are_skipped() -> None:
    extra = b"\x18\xac\x02" + b"\x21" + bytes(8) + b"\x2d" + bytes(4) + message(9, b"anything")
    assert parse_process_context(extra + GOOD) == parse_process_context(GOOD)


def test_more_attributes_than_anybody_has_are_refused() -> None:
    many = tuple(text(f"key{number}", "") for number in range(257))
    with pytest.raises(PayloadError):
        parse_process_context(payload(attributes=many))


def test_of_a_resource_with_more_attributes_than_anybody_has_the_first_are_taken() -> None:
    many = tuple(text(f"key{number}", "") for number in range(300))
    assert list(parse_process_context(payload(*many)).resource) == [f"key{number}" for number in range(256)]


def test_a_message_in_two_parts_is_one() -> None:
    parts = payload(text("a", "1")) + payload(text("b", "2"), attributes=THREADS)
    found = parse_process_context(parts)
    assert (found.resource, found.attribute_keys) == ({"a": "1", "b": "2"}, ("a", "b"))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse_process_context(data)
    except PayloadError:
        pass


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_good_bytes_with_one_changed_are_read_or_refused(place: int, byte: int) -> None:
    try:
        parse_process_context(GOOD[:place] + bytes([byte]) + GOOD[place + 1 :])
    except PayloadError:
        pass


def test_every_truncation_is_read_or_refused() -> None:
    whole = parse_process_context(GOOD)
    shorter = 0
    for size in range(len(GOOD)):
        try:
            assert parse_process_context(GOOD[:size]) != whole
        except PayloadError:
            shorter += 1
    assert shorter > len(GOOD) / 2
