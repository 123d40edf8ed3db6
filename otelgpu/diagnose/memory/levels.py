"""What allocators and the driver say of the same memory, over time: from metrics. Pure.

In: lines of OTLP/JSON (``MetricsData``). Out: :class:`Levels`. Of a metric that is none of :data:`NAMES` nothing is
read; the driver's are those of processes (``otelgpu.gpu.process.memory.usage``) and of devices (``hw.gpu.memory.*``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct, field

from otelgpu.model.resource import AttributeValue
from otelgpu.otlp_json.messages import Point
from otelgpu.otlp_json.reader import Reader, Unreadable, attributes, int64, time_ns

RESERVED: Final = "torch.memory.reserved"
ALLOCATED: Final = "torch.memory.allocated"
CHARGED: Final = "otelgpu.gpu.process.memory.usage"
LIMIT: Final = "hw.gpu.memory.limit"
USAGE: Final = "hw.gpu.memory.usage"
NAMES: Final = (RESERVED, ALLOCATED, CHARGED, LIMIT, USAGE)

MOST_POINTS: Final = 500_000
_TORCH_DEVICE: Final = "torch.device"
_HARDWARE: Final = "hw.id"

Series = list[tuple[int, int]]


class Levels(Struct):
    """By metric, process and device: (time, value), in order. A device's own metrics have process 0.

    The device is PyTorch's name of it (``cuda:0``), or the driver's id.
    """

    series: dict[tuple[str, int, str], Series] = field(default_factory=dict)
    points: int = 0
    rejected: int = 0

    def read(self, lines: Iterable[bytes | None]) -> None:
        """More lines."""
        reader = Reader()
        for document in reader.documents(lines, containing=b"resourceMetrics"):
            for of_resource in document.resource_metrics:
                try:
                    pid = attributes(of_resource.resource.attributes).get("process.pid", 0)
                except Unreadable:
                    self.rejected += 1
                    continue
                for of_scope in of_resource.scope_metrics:
                    for metric in reader.metrics(of_scope):
                        if metric.name in NAMES and metric.sum is not None:
                            self._take(
                                metric.name, pid if isinstance(pid, int) else 0, metric.sum.data_points
                            )
        self.rejected += reader.skips.counts.total()

    def _take(self, name: str, pid: int, points: Iterable[Point]) -> None:
        for point in points:
            try:
                labels = attributes(point.attributes)
                time, value = time_ns(point.time_unix_nano), int64(point.as_int or 0)
            except Unreadable:
                self.rejected += 1
                continue
            if self.points >= MOST_POINTS or value < 0:
                self.rejected += 1
                continue
            self.points += 1
            device = _text(
                labels.get(_TORCH_DEVICE) if name in (RESERVED, ALLOCATED) else labels.get(_HARDWARE)
            )
            key = name, 0 if name in (LIMIT, USAGE) else pid, device
            self.series.setdefault(key, []).append((time, value))

    def at(self, name: str, pid: int, device: str, time: int) -> int | None:
        """The last that was reported by then, else the first after it; None where there is none."""
        series = self.series.get((name, pid, device))
        if not series:
            return None
        place = bisect_right(series, (time, 1 << 63)) - 1
        return series[max(place, 0)][1]

    def charged(self, pid: int, time: int) -> Iterator[tuple[str, int]]:
        """What the driver charges a process at a time: the device's id, and bytes."""
        for name, number, device in self.series:
            if name == CHARGED and number == pid and (value := self.at(name, pid, device, time)) is not None:
                yield device, value

    def most_charged(self, pid: int, device: str) -> int:
        """The most that the driver charged a process for a device."""
        return max((value for _, value in self.series.get((CHARGED, pid, device), ())), default=0)


def _text(value: AttributeValue | None) -> str:
    return value if isinstance(value, str) else ""
