"""What diagnoses read of rows of profiles, whatever kind: whose they are, their frames, their attributes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from otelgpu.model.profiles import ProfileColumns
from otelgpu.model.spans import Attribute, Text, plain
from otelgpu.render.frames import Frame, location_frames
from otelgpu.render.page_columns import clean


def process_of(batch: ProfileColumns) -> tuple[int, str]:
    """Process id, 0 where none is reported, and what it is called."""
    pid = batch.resource.get("process.pid")
    names = (
        batch.resource.get(key) for key in ("process.command", "process.executable.name", "service.name")
    )
    name = next((clean(plain(str(each))).rpartition("/")[2] for each in names if each), "process")
    return (pid if isinstance(pid, int) and not isinstance(pid, bool) else 0), name


def frames_of(batch: ProfileColumns, stack: Sequence[int]) -> tuple[Frame, ...]:
    """The frames of a stack, the leaf first."""
    return tuple(
        frame._replace(name=clean(frame.name), file=clean(frame.file))
        for location in stack
        for frame in location_frames(batch, location)
    )


def value_of(attribute: Attribute | None, row: int) -> object:
    """An attribute of a row; None where it has none."""
    if attribute is None or (attribute.present is not None and not attribute.present[row]):
        return None
    values = attribute.values
    if isinstance(values, Text):
        return plain(values.table[values.codes[row]])
    return values[row].item() if hasattr(values[row], "item") else values[row]
