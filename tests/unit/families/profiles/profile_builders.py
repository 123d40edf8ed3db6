"""Rows, stacks and sessions of profiles for tests: times in ns, processes 10 and up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from otelgpu.engine.profile_rows import ProfileRows, profile_rows
from otelgpu.families.profiles import names
from otelgpu.families.profiles.intervals import ProfileSession
from otelgpu.families.profiles.span_links import SpanLinks
from otelgpu.model.context import Context, Unsettled
from otelgpu.model.profiles import FrameType, ProfileColumns, ValueType
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.resource import Resource, resource
from otelgpu.model.samples import Frame, SampleKind, Samples, StackNamed, samples
from otelgpu.model.spans import Text

S = 1_000_000_000
UNIX = 10**18


def native(name: str, file: str = "/lib/x.so", address: int = 16) -> Frame:
    return Frame(type=FrameType.NATIVE, name=name, file=file, build_id="ab" * 20, address=address)


def python(name: str, line: int = 3) -> Frame:
    return Frame(type=FrameType.PYTHON, name=name, file="/app/a.py", line=line)


def named(stack: int, *frames: Frame | str, tgid: int = 10, truncated: str = "") -> StackNamed:
    made = tuple(native(each) if isinstance(each, str) else each for each in frames)
    return StackNamed(tgid=tgid, stack=stack, frames=made, truncated=truncated)


def sampled(kind: SampleKind, *rows: Mapping[str, Any]) -> Samples:
    found = samples(len(rows))
    for place, row in enumerate(rows):
        for name, value in ({"kind": kind, "tgid": 10, "tid": 11, "value": 1} | dict(row)).items():
            found[name][place] = value
    return found


def rows_of(
    *rows: Mapping[str, Any],
    kind: ProfileKind = ProfileKind.CPU,
    sample_type: ValueType = names.CPU,
    **rest: Any,
) -> ProfileRows:
    found = profile_rows(len(rows))
    for place, row in enumerate(rows):
        for name, value in ({"tgid": 10, "tid": 11, "value": 1, "stack": 1} | dict(row)).items():
            found[name][place] = value
    return ProfileRows(kind=kind, sample_type=sample_type, rows=found, **rest)


def no_owner(
    tids: npt.NDArray[np.uint32], times_ns: npt.NDArray[np.uint64], final: bool
) -> npt.NDArray[np.int64]:
    return np.zeros(len(tids), dtype=np.int64)


def no_task(
    tgids: npt.NDArray[np.uint32],
    tids: npt.NDArray[np.uint32],
    span_ids: npt.NDArray[np.uint8],
    times_ns: npt.NDArray[np.uint64],
    final: bool,
) -> npt.NDArray[np.int64]:
    return np.zeros(len(tgids), dtype=np.int64)


def process(tgid: int) -> Resource:
    return resource({"process.pid": tgid})


def session(
    *,
    owners_at: Callable[..., npt.NDArray[np.int64]] = no_owner,
    owners_by_task: Callable[..., npt.NDArray[np.int64]] = no_task,
    span_of: Callable[[int, bool], Context | Unsettled | None] = lambda key, final: None,
    step_at: Callable[[int, int, int], Context | Unsettled | None] = lambda tgid, tid, time_ns: None,
    has_steps: Callable[[int], bool] = lambda tgid: True,
    interval_s: float = 10.0,
    keep_times: bool = True,
    **rest: Any,
) -> ProfileSession:
    settings = ProfileSettings(kinds=frozenset(ProfileKind), interval_s=interval_s, keep_times=keep_times)
    links = SpanLinks(owners_at, owners_by_task, span_of, step_at, has_steps)
    return ProfileSession(settings, rest.pop("resource_of", process), links, **rest)


def stacks_of(columns: ProfileColumns) -> Counter[tuple[str, ...]]:
    """Sums of values by names of frames, the leaf first."""
    found: Counter[tuple[str, ...]] = Counter()
    for code, value in zip(columns.stack.tolist(), columns.value.tolist(), strict=True):
        frames = [columns.locations[each] for each in columns.stacks[code]]
        found[tuple(columns.functions[frame.lines[0].function].name for frame in frames)] += value
    return found


def attribute(columns: ProfileColumns, key: str) -> list[Any]:
    """Of each row; None where it has none."""
    for each in columns.attributes:
        if each.key == key:
            values = each.values
            shown: Sequence[Any] = (
                [values.table[code] for code in values.codes.tolist()]
                if isinstance(values, Text)
                else values.tolist()
            )
            present = each.present.tolist() if each.present is not None else [True] * len(columns)
            return [value if there else None for value, there in zip(shown, present, strict=True)]
    return [None] * len(columns)


def spans_of(columns: ProfileColumns) -> list[bytes]:
    """The span id that each row links to, zeros for none."""
    if columns.links is None:
        return [bytes(8)] * len(columns)
    return [columns.links.span_id[code].tobytes() for code in columns.links.codes.tolist()]
