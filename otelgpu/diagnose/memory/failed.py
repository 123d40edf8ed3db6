"""Events of allocations that failed → verdicts of those that did not recover. Pure.

In: events as a session reports them, or as they stand in a file (docs/reference/device-memory.md). A file's may have
anything: an attribute that is missing or of another type is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otelgpu.diagnose.memory.verdicts import MEMORY, OUT_OF_MEMORY, MemoryEvidence, MemoryVerdict
from otelgpu.model import memory_failures as names
from otelgpu.model.events import Event
from otelgpu.model.quantities import size
from otelgpu.render.page_columns import clean

_MOST: Final = 20
_MOST_TEXTS: Final = 16


def is_failure(event: Event) -> bool:
    """Whether it is one of these."""
    return event.name == names.EVENT


def has_recovered(event: Event) -> bool:
    """Whether the thread was given as much later."""
    return event.attributes.get(names.OUTCOME) == names.RECOVERED


def verdicts_of(events: Sequence[Event]) -> list[MemoryVerdict]:
    """A verdict for each, the latest first, and of no more than :data:`_MOST`."""
    failed = [each for each in events if is_failure(each) and not has_recovered(each)]
    return [_verdict(each) for each in sorted(failed, key=lambda each: -each.time_unix_ns)[:_MOST]]


def remarks_of(events: Sequence[Event]) -> list[str]:
    """What is said of those that recovered."""
    return [clean(each.text) for each in events if is_failure(each) and has_recovered(each)][:_MOST]


def _verdict(event: Event) -> MemoryVerdict:
    pid = event.resource.get("process.pid")
    name = event.resource.get("process.command") or event.resource.get("process.executable.name")
    device = next((value for key, value in event.attributes.items() if key.endswith(".device.index")), -1)
    requested, held = _number(event, names.REQUESTED), _number(event, names.HELD)
    evidence = [
        MemoryEvidence(
            name="held", text=f"it held {size(held)} that was seen to be allocated", value=held, unit="By"
        ),
        *(MemoryEvidence(name="holder", text=each) for each in _texts(event, names.HOLDERS)),
    ]
    total, free = _number(event, names.DEVICE_TOTAL, -1), _number(event, names.DEVICE_FREE, -1)
    if total >= 0 and free >= 0:
        text = f"{size(free)} of {size(total)} of the device were free"
        evidence.append(MemoryEvidence(name="free", text=text, value=free, unit="By"))
    if (cached := _number(event, names.CACHED, -1)) >= 0:
        text = f"the framework's allocator kept {size(cached)} that no tensor used"
        evidence.append(MemoryEvidence(name="cached", text=text, value=cached, unit="By"))
    evidence += [
        MemoryEvidence(name="other", text=f"also on it: {each}") for each in _texts(event, names.OTHERS)
    ]
    return MemoryVerdict(
        klass=MEMORY,
        cause=OUT_OF_MEMORY,
        detail=_text(event, names.CAUSE) or "unknown",
        pid=pid if isinstance(pid, int) else 0,
        program=clean(str(name or "process")).rpartition("/")[2],
        device=device if isinstance(device, int) else -1,
        bytes=requested,
        rule=_text(event, names.RULE),
        confidence=1.0,
        evidence=evidence,
        next=_text(event, names.NEXT),
        start_unix_s=event.time_unix_ns / 1e9,
        end_unix_s=event.time_unix_ns / 1e9,
    )


def _number(event: Event, key: str, missing: int = 0) -> int:
    value = event.attributes.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else missing


def _text(event: Event, key: str) -> str:
    value = event.attributes.get(key)
    return clean(value) if isinstance(value, str) else ""


def _texts(event: Event, key: str) -> list[str]:
    value = event.attributes.get(key)
    return [clean(each) for each in value[:_MOST_TEXTS]] if isinstance(value, tuple) else []
