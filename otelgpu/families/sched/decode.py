"""Family ``sched``: batches of ``struct sched_handoff`` (``bpf/sched/sched.h``) → hand-offs. Pure."""

from __future__ import annotations

from typing import Final

from otelgpu.model.handoffs import Handoff, HandoffEvent
from otelgpu.model.inputs import Batch

_HEAD: Final = ("time_ns", "tgid", "tid")
_OWN: Final = ("event", "idle_ns", "waker")
_EVENTS: Final = frozenset(HandoffEvent)


class SchedDecoder:
    """Decodes batches of family ``sched``; unknown events are skipped."""

    def hand_offs(self, batch: Batch) -> list[Handoff]:
        """The events of a batch, in its order, which is not quite that of time."""
        if batch.kind != "sched_handoff":
            return []
        heads, records = batch.heads, batch.records
        columns = [heads[name].tolist() for name in _HEAD] + [records[name].tolist() for name in _OWN]
        return [
            Handoff(
                time_ns=time_ns,
                tgid=tgid,
                tid=tid,
                event=HandoffEvent(event),
                idle_ns=idle_ns,
                waker=waker,
            )
            for time_ns, tgid, tid, event, idle_ns, waker in zip(*columns, strict=True)
            if event in _EVENTS
        ]
