"""Records of family ``verbs`` (``bpf/verbs/verbs.h``) → facts of :mod:`otelgpu.families.rdma.facts`. Pure.

Numbers become words by the tables of :mod:`otelgpu.families.rdma.words`; functions have the names that the
object's BTF gives them. Nothing a record holds is believed: what no table has becomes ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from otelgpu.elf.btf import Btf
from otelgpu.families.rdma import words
from otelgpu.families.rdma.facts import (
    NO_GID,
    Counted,
    EventSource,
    FabricEvent,
    ObjectChanged,
    QueuePairChanged,
    QueuePairCounts,
    QueuePairState,
    RegionChanged,
    TransferSeen,
    VerbsFact,
)
from otelgpu.model.inputs import Batch, Records
from otelgpu.model.operations import LARGEST_SIZE

_API: Final = "API_"
_OPERATION: Final = "VERBS_"
_NO_COUNTER: Final = "last_error_ns"
_LATEST_NS: Final = np.uint64((1 << 63) - 1)  # whoever counts on has differences, with a sign
_MOST_TIMEOUT: Final = 31  # 5 bits
_MOST_RETRIES: Final = 7  # 3 bits


class VerbsDecoder:
    """Decodes batches of family ``verbs``. ``btf`` says the functions' and the operations' numbers."""

    def __init__(self, btf: Btf) -> None:
        functions = btf.enumerators("verbs_api") if btf.has_enum("verbs_api") else {}
        self._calls: Mapping[int, str] = {
            number: name.removeprefix(_API) for name, number in functions.items() if name != "API_COUNT"
        }
        self._operations: Mapping[int, str] = {
            number: name.removeprefix(_OPERATION).lower()
            for name, number in btf.enumerators("verbs_operation").items()
            if not name.endswith("_COUNT")
        }
        self._counters: tuple[Counted, ...] = ()
        self._decoders: Mapping[str, Callable[[Batch], Iterator[VerbsFact]]] = {
            "verbs_queue_pair": self._queue_pairs,
            "verbs_region": self._regions,
            "verbs_object": self._objects,
            "verbs_event": self._events,
            "verbs_counts": self._counts,
            "verbs_transfer": self._transfers,
        }

    def facts(self, batch: Batch) -> list[VerbsFact]:
        """The facts of a batch in its order; counts of all its queue pairs are one fact. Of other kinds, none."""
        decode = self._decoders.get(batch.kind)
        return list(decode(batch)) if decode is not None else []

    def _queue_pairs(self, batch: Batch) -> Iterator[VerbsFact]:
        for head, row in _rows(batch):
            call = self._call(row["api"])
            yield QueuePairChanged(
                time_ns=head["time_ns"],
                duration_ns=head["duration_ns"],
                tgid=head["tgid"],
                tid=head["tid"],
                queue_pair=row["queue_pair"],
                number=row["number"],
                state=_state(row["state"]),
                call=call,
                context=row["context"],
                send_queue=row["send_queue"],
                receive_queue=row["receive_queue"],
                device=row["device"],
                type=words.word(words.TYPES, row["type"]) if row["type"] else "",
                port=row["port"],
                local_gid_index=row["local_gid_index"],
                peer_number=row["peer_number"],
                peer_gid=row["peer_gid"] if row["has_route"] else NO_GID,
                peer_lid=row["peer_lid"],
                path_mtu_bytes=words.MTU_BYTES.get(row["path_mtu"], 0),
                timeout=min(row["timeout"], _MOST_TIMEOUT),
                retries=min(row["retries"], _MOST_RETRIES),
                rnr_retries=min(row["rnr_retries"], _MOST_RETRIES),
                made="create_qp" in call,
                destroyed=bool(row["destroyed"]),
                error=row["status"],
            )

    def _regions(self, batch: Batch) -> Iterator[VerbsFact]:
        for head, row in _rows(batch):
            yield RegionChanged(
                time_ns=head["time_ns"],
                tgid=head["tgid"],
                region=row["region"],
                device=row["device"],
                bytes=row["bytes"],
                removed=bool(row["removed"]),
                dmabuf=bool(row["dmabuf"]),
                error=row["status"],
            )

    def _objects(self, batch: Batch) -> Iterator[VerbsFact]:
        for head, row in _rows(batch):
            yield ObjectChanged(
                time_ns=head["time_ns"],
                tgid=head["tgid"],
                call=self._call(row["api"]),
                object=row["object"],
                removed=bool(row["removed"]),
                device=row["device"],
                context=row["context"],
                detail=row["detail"],
                error=row["status"],
            )

    def _events(self, batch: Batch) -> Iterator[VerbsFact]:
        for head, row in _rows(batch):
            if row["status"] and not row["object"]:
                continue  # the call failed, as one does that does not wait; it reported of nothing
            source, event = _source(self._call(row["api"])), row["event"]
            of_device = source is EventSource.DEVICE
            yield FabricEvent(
                time_ns=head["time_ns"],
                tgid=head["tgid"],
                source=source,
                event=_event(source, event),
                device=row["device"],
                object=row["object"],
                number=row["number"],
                of_port=of_device and event in words.PORT_EVENTS,
                failed=(of_device and event in words.FAILURES)
                or (source is EventSource.CONNECTION and event in words.CONNECTION_FAILURES),
                status=row["status"],
            )

    def _transfers(self, batch: Batch) -> Iterator[VerbsFact]:
        for head, row in _rows(batch):
            yield TransferSeen(
                time_ns=head["time_ns"],
                duration_ns=head["duration_ns"],
                tgid=head["tgid"],
                tid=head["tid"],
                queue_pair=row["queue_pair"],
                number=row["number"],
                id=row["id"],
                bytes=min(row["bytes"], LARGEST_SIZE),
                operation=words.word(self._operations, row["operation"]),
                status=words.word(words.STATUSES, row["status"]),
                vendor_error=row["vendor_error"],
            )

    def _counts(self, batch: Batch) -> Iterator[VerbsFact]:
        if not len(batch.records):
            return
        counted, keys = batch.records["counted"], batch.records["key"]
        fields = [
            name
            for name in counted.dtype.names or ()
            if counted.dtype[name].base == np.uint64 and name != _NO_COUNTER
        ]
        if not self._counters:
            self._counters = tuple(each for name in fields for each in self._columns(counted, name))
        yield QueuePairCounts(
            time_ns=np.minimum(batch.heads["time_ns"].astype(np.uint64), _LATEST_NS),
            tgid=keys["tgid"].astype(np.uint64),
            queue_pair=keys["queue_pair"].astype(np.uint64),
            number=keys["number"].astype(np.uint64),
            counted_ns=np.minimum(batch.heads["duration_ns"].astype(np.uint64), _LATEST_NS),
            vendor_error=counted["vendor_error"].astype(np.uint64),
            last_error_ns=counted["last_error_ns"].astype(np.uint64),
            counters=self._counters,
            values=np.concatenate([_wide(counted[name]) for name in fields], axis=1),
        )

    def _columns(self, counted: Records, name: str) -> list[Counted]:
        """What the columns of a field are called."""
        shape = counted.dtype[name].shape
        if not shape:
            return [Counted(name, "")]
        if name in ("work_requests", "bytes"):
            return [Counted(name, words.word(self._operations, each)) for each in range(shape[0])]
        if name == "statuses":
            return [Counted(name, words.word(words.STATUSES, each)) for each in range(shape[0])]
        return [Counted(name, each) for each in range(shape[0])]

    def _call(self, api: int) -> str:
        return self._calls.get(api, "unknown")


def _rows(batch: Batch) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The head and the fields of each record, as Python's own types."""
    head_names = ("time_ns", "duration_ns", "tgid", "tid")
    heads = [batch.heads[name].tolist() for name in head_names]
    names = [name for name in batch.records.dtype.names or () if name not in ("head", "reserved")]
    columns = [_plain(batch.records[name]) for name in names]
    for head, row in zip(zip(*heads, strict=True), zip(*columns, strict=True), strict=True):
        yield dict(zip(head_names, head, strict=True)), dict(zip(names, row, strict=True))


def _plain(column: npt.NDArray[Any]) -> list[Any]:
    """Numbers, texts, or the bytes of arrays of bytes."""
    if column.ndim > 1:
        return [row.tobytes() for row in column]
    found: list[Any] = column.tolist()
    return [_text(each) for each in found] if column.dtype.kind == "S" else found


def _text(field: bytes) -> str:
    """A device's name, as far as it is one: the kernel's names are printable ASCII."""
    name = field.partition(b"\0")[0].decode("ascii", "replace")
    return "".join(each if each.isprintable() and each != "\ufffd" else "?" for each in name)


def _wide(column: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """(n, k) from a field that is one number, (n,), or an array of them."""
    return column.reshape(len(column), -1).astype(np.uint64)


def _state(number: int) -> QueuePairState:
    return words.STATES[number] if number < len(words.STATES) else QueuePairState.UNKNOWN


def _source(call: str) -> EventSource:
    if call.startswith("rdma_"):
        return EventSource.CONNECTION
    return EventSource.COMPLETION if "cq_event" in call else EventSource.DEVICE


def _event(source: EventSource, number: int) -> str:
    if source is EventSource.COMPLETION:
        return "completion"
    table = words.CONNECTION_EVENTS if source is EventSource.CONNECTION else words.DEVICE_EVENTS
    return words.word(table, number)
