"""The answer to an allocation that failed for want of memory: one event, with who held what and what to change. Pure.

In: a :class:`~otelgpu.families.gpu.memory.failures.Failure`, what the driver said of the device, what the framework's
allocator keeps. Out: :class:`~otelgpu.model.events.Event`. A cause is named only where numbers say so:

* ``request_too_large``: more was asked for than the device has;
* ``other_processes``: it would have fitted, were it not for what other processes have of the device;
* ``allocator_cache``: the framework's allocator keeps as much as was asked for, in pieces that do not serve;
* ``own_memory``: what the process holds itself leaves too little;
* ``unknown``: the device's memory is not read, or by that reading there was room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from otelgpu.engine.memory_names import MemoryNames
from otelgpu.engine.services import AllocatorLevel
from otelgpu.families.gpu.memory.device_facts import DeviceMemory
from otelgpu.families.gpu.memory.failures import Failure, Holder
from otelgpu.model.events import Event
from otelgpu.model.memory_failures import (
    ATTEMPTS,
    CACHED,
    CAUSE,
    DEVICE_AGE,
    DEVICE_FREE,
    DEVICE_TOTAL,
    ENDED,
    EVENT,
    FREED,
    HELD,
    HOLDERS,
    NEXT,
    OTHERS,
    OUTCOME,
    RECOVERED,
    REQUESTED,
    RULE,
    UNREPORTED,
)
from otelgpu.model.operations import DEVICE_UNKNOWN, memory_name
from otelgpu.model.quantities import duration, size
from otelgpu.model.resource import AttributeValue, Resource

THREAD: Final = "thread.id"
DEVICE_ID: Final = "hw.id"

REQUEST_TOO_LARGE: Final = "request_too_large"
OTHER_PROCESSES: Final = "other_processes"
ALLOCATOR_CACHE: Final = "allocator_cache"
OWN_MEMORY: Final = "own_memory"
UNKNOWN: Final = "unknown"

CHANGES: Final[Mapping[str, str]] = {
    REQUEST_TOO_LARGE: "ask for less at once: a smaller batch, shorter sequences, a dtype half as wide; or divide it "
    "over several devices; a size that is far too large is mostly a wrong shape",
    OTHER_PROCESSES: "end or move the other processes, or take another device (CUDA_VISIBLE_DEVICES); a server that "
    "shares a device needs a smaller share: vLLM --gpu-memory-utilization, SGLang --mem-fraction-static",
    ALLOCATOR_CACHE: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PyTorch 2.9 and newer: PYTORCH_ALLOC_CONF); "
    "fewer different sizes: pad sequences to few lengths",
    OWN_MEMORY: "free what holds most, or make it smaller: a smaller batch or fewer tokens at once, activation "
    "checkpointing, a sharded optimizer; of a server --gpu-memory-utilization, --max-num-batched-tokens",
    UNKNOWN: "make smaller what holds most, which otelgpu diagnose memory says; where NVML (libnvidia-ml.so.1) is to "
    "be had, it is also known who else has of the device",
}
"""Cause → what to change."""

RULES: Final[Mapping[str, str]] = {ALLOCATOR_CACHE: "allocator-fragmentation"}
"""Cause → known problem (``otelgpu diagnose explain``); of others :data:`_RULE`."""
_RULE: Final = "cuda-out-of-memory"


class Scene(Struct, frozen=True, kw_only=True):
    """All that is known beside the failure. ``unreported``: others before it that had no event."""

    names: MemoryNames
    owner: Resource
    offset_ns: int
    device: DeviceMemory | None
    level: AllocatorLevel | None
    place_of: Callable[[Holder], str]
    unreported: int = 0


def cause_of(failure: Failure, device: DeviceMemory | None, level: AllocatorLevel | None) -> str:
    """One of :data:`CHANGES`."""
    wanted = failure.request.size
    cached = level.reserved - level.allocated if level is not None else 0
    if device is None or device.total is None:
        return ALLOCATOR_CACHE if cached >= wanted > 0 else UNKNOWN
    if wanted > device.total:
        return REQUEST_TOO_LARGE
    if cached >= wanted > 0:
        return ALLOCATOR_CACHE
    own = max(device.own or 0, failure.held)
    others = sum(held for _, held in device.others)
    if own + wanted > device.total:
        return OWN_MEMORY
    if others and own + others + wanted > device.total:
        return OTHER_PROCESSES
    return UNKNOWN


def post_mortem(failure: Failure, scene: Scene) -> Event:
    """The event of a failure."""
    request, cause = failure.request, cause_of(failure, scene.device, scene.level)
    recovered = failure.outcome == RECOVERED
    attributes: dict[str, AttributeValue] = {
        OUTCOME: failure.outcome,
        CAUSE: cause,
        REQUESTED: request.size,
        ATTEMPTS: failure.attempts,
        HELD: failure.held,
        HOLDERS: tuple(_holder(each, scene) for each in failure.top),
        THREAD: request.tid,
        scene.names.kind: memory_name(request.memory),
    }
    if request.device != DEVICE_UNKNOWN:
        attributes[scene.names.device] = request.device
    if scene.unreported:
        attributes[UNREPORTED] = scene.unreported
    if scene.level is not None:
        attributes[CACHED] = max(scene.level.reserved - scene.level.allocated, 0)
    if recovered:
        attributes[FREED] = failure.freed
    else:
        attributes[NEXT], attributes[RULE] = CHANGES[cause], RULES.get(cause, _RULE)
    attributes.update(_of_device(scene.device))
    return Event(
        name=EVENT,
        time_unix_ns=request.time_ns + scene.offset_ns,
        text=_text(failure, scene, cause),
        attributes=attributes,
        resource=scene.owner,
        warns=not recovered,
    )


def _of_device(device: DeviceMemory | None) -> dict[str, AttributeValue]:
    if device is None:
        return {}
    found: dict[str, AttributeValue] = {
        DEVICE_ID: device.uuid,
        DEVICE_AGE: device.age_ns * 1e-9,
        OTHERS: tuple(f"PID {number}: {size(held)}" for number, held in device.others),
    }
    if device.total is not None:
        found[DEVICE_TOTAL] = device.total
    if device.free is not None:
        found[DEVICE_FREE] = device.free
    return found


def _holder(holder: Holder, scene: Scene) -> str:
    grows = ", grows and frees nothing" if holder.growing else ""
    return f"{size(holder.size)} in {holder.number} by {scene.place_of(holder)}{grows}"


def _text(failure: Failure, scene: Scene, cause: str) -> str:
    request, device = failure.request, scene.device
    where = f"device {request.device}" if request.device != DEVICE_UNKNOWN else "a device"
    asker = Holder(request.caller, request.stack, request.size, 1, growing=False)
    head = "Out of memory" if failure.outcome != RECOVERED else "An allocation failed and was met later"
    parts = [
        f"{head}: thread {request.tid} asked for {size(request.size)} of {where} in {scene.place_of(asker)}"
        + (f", {failure.attempts} times" if failure.attempts > 1 else ""),
        _outcome(failure),
        f"the process held {size(failure.held)} that was seen to be allocated"
        + (f": {_holder(failure.top[0], scene)}" if failure.top else ""),
    ]
    if scene.level is not None:
        cached = max(scene.level.reserved - scene.level.allocated, 0)
        parts.append(f"its framework's allocator kept {size(cached)} that no tensor used")
    if device is not None and device.free is not None and device.total is not None:
        before = f"{duration(device.age_ns)} before that was reported"
        parts.append(f"{size(device.free)} of {size(device.total)} were free {before}")
        if device.others:
            had = ", ".join(f"PID {number} {size(held)}" for number, held in device.others[:3])
            parts.append(f"others had {had}")
    else:
        parts.append("how much the device has, and who else has of it, is not known")
    if scene.unreported:
        parts.append(f"{scene.unreported} more failed before it")
    if failure.outcome == RECOVERED:
        return "; ".join(parts) + "."
    return f"{'; '.join(parts)}. Cause: {cause.replace('_', ' ')}. Next: {CHANGES[cause]}."


def _outcome(failure: Failure) -> str:
    if failure.outcome == RECOVERED:
        freed = f", after {size(failure.freed)} was freed" if failure.freed else ""
        return f"it got as much {duration(failure.after_ns)} later{freed}"
    if failure.outcome == ENDED:
        return "the process ended after it"
    return "it did not get it"
